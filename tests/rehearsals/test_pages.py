"""Tests that pages, rehearsals and their tests belong together: none is there without the others."""

from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.rehearsals.__main__ import TABLE, put_into, unfollowed
from tests.rehearsals.drill import Measured
from tests.rehearsals.registry import REHEARSALS
from tests.rehearsals.runbook import PARTS, ROOT, RUNBOOK, disasters, pages

HERE = Path(__file__).parent


def _marked() -> Iterator[str]:
    """Yields the name of each rehearsal that a test of this folder has as its mark."""
    for file in HERE.glob("test_*.py"):
        for member in vars(import_module(f"tests.rehearsals.{file.stem}")).values():
            marks = [*getattr(member, "pytestmark", [])] if callable(member) else []
            for mark in marks:
                of_case = [inner for case in mark.args[1] for inner in getattr(case, "marks", ())] if mark.name == "parametrize" else [mark]
                yield from (str(each.args[0]) for each in of_case if each.name == "rehearsal")


def test_every_page_has_a_rehearsal() -> None:
    """A page that promises a largest loss has a rehearsal, and every rehearsal's page promises one."""
    assert {page.title for page in disasters(RUNBOOK.read_text())} == {each.page for each in REHEARSALS.values()}


def test_every_rehearsal_has_one_test() -> None:
    """Each rehearsal's name is the mark of one test, and no test has another name."""
    assert Counter(_marked()) == Counter(REHEARSALS.keys())


@pytest.mark.parametrize("title", sorted({each.page for each in REHEARSALS.values()}))
def test_a_page_has_all_its_parts(title: str) -> None:
    """A page says, in this order: the signs, the meaning, the largest loss, the time, the commands, and the sign of the end."""
    page = pages(RUNBOOK.read_text())[title]
    places = [page.text.find(f"**{part}**") for part in PARTS]
    assert -1 not in places
    assert places == sorted(places)
    assert page.blocks, "there are no commands"
    for each in REHEARSALS.values():
        if each.page == title:
            assert f"<!-- took: {each.name} -->" in page.text


def test_controllers_on_new_disks_are_the_same_voters() -> None:
    """Controllers that lost their disks get their former directory ids, the metadata of the third, and files of their own user."""
    page = pages(RUNBOOK.read_text())["The controllers have no quorum"]
    for words in ("--no-initial-controllers", "directory.id=", "not with `format-controller.sh`"):
        assert words in page.text
    for broker in (1, 2):
        copied = page.blocks[0].index(f"scp -r broker-3:data/__cluster_metadata-0 broker-{broker}:data/")
        given = page.blocks[0].index(f"ssh broker-{broker} chown -R kafka: data")
        assert copied < given < page.blocks[0].index(f"ssh broker-{broker} systemctl start kafka-broker")


@pytest.mark.parametrize("title", ["A broker loses its disk", "A centre is lost"])
def test_a_lost_disk_is_not_formatted_as_a_new_one(title: str) -> None:
    """The page names the manual's section for a lost disk, and none of the scripts for a new cluster."""
    page = pages(RUNBOOK.read_text())[title]
    assert "deploy/sites/README.md#a-lost-disk" in page.text
    assert "format-broker.sh" not in page.text
    assert "format-controller.sh" not in page.text


def test_a_restore_names_the_rights_that_it_takes() -> None:
    """A restore changes the type of the topics' times, a right that no client has, so the pages name the broker's certificate."""
    for text in (pages(RUNBOOK.read_text())["All brokers lose their disks"].text, (ROOT / "docs" / "spark.md").read_text()):
        for words in ("`AlterConfigs`", "--kafka-config /etc/notary/broker-client.properties", "`acls.sh`"):
            assert words in text


def test_figures_replace_only_their_own() -> None:
    """The figures of one rehearsal replace its row and its page's time, and leave everything else."""
    text = RUNBOOK.read_text()
    name, *others = REHEARSALS
    each = REHEARSALS[name]
    blocks = len(pages(text)[each.page].blocks)
    once = put_into(text, [Measured(name, each.page, each.loses, 321, 0, 1.25, 2.5, 12.5, blocks, (0,))], "today, 2 cores")
    table = TABLE.search(once)
    assert table is not None
    assert f"| {each.loses} | 0 of 321 | 1.2 s | 2.5 s | 12.5 s | today, 2 cores |" in table[0]
    assert "over after 12.5 s<!-- end -->" in pages(once)[each.page].text
    for line in set(text.splitlines()) - set(once.splitlines()):
        assert line.startswith(f"| [{name}](") or f"<!-- took: {name} -->" in line
    assert len(others) == len(REHEARSALS) - 1


def test_blocks_that_nobody_ran_are_named() -> None:
    """A block counts as followed if any rehearsal of its page ran it."""
    run = [Measured(name, "A page", "nothing", 1, 0, 1, 1, 1, 3, blocks) for name, blocks in (("one", (0,)), ("two", (2,)))]
    assert unfollowed(run) == ["block 2 of 'A page'"]
