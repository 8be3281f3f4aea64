"""Tests that the documentation matches the code: it names everything that it must, and everything that it names exists."""

import argparse
import re
import subprocess
import tomllib
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from deploy.local.jars import ALL
from notary.cli import COMMANDS, command_named
from notary.config import SETTINGS
from notary.http.problems import NAMES
from spark_join import arguments as verifier

ROOT = Path(__file__).parents[2]
DOCS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CODE = [
    file
    for package in ("ordering", "payload", "joiner", "notary", "deploy", "spark_join")
    for file in sorted((ROOT / package).rglob("*.py"))
]

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def text(page: str) -> str:
    return (ROOT / page).read_text()


def headings(file: Path) -> set[str]:
    """Returns the anchors of a page's headings."""
    lines = _CODE_BLOCK.sub("", file.read_text()).splitlines()
    titles = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def settings() -> list[tuple[str, str, str]]:
    """Returns (name, variable, default) of every setting, as configuration.md must list it."""
    return [(setting.key, setting.variable, shown(setting.default)) for setting in SETTINGS.values()]


def shown(default: object) -> str:
    """Returns a default in the form of the page; empty if the page may describe it in words."""
    if default is msgspec.NODEFAULT or default == "":
        return ""
    return str(default) if isinstance(default, int) else f"`{default}`"


@pytest.mark.parametrize(("name", "variable", "default"), settings(), ids=[variable for _, variable, _ in settings()])
def test_every_setting_has_a_row(name: str, variable: str, default: str) -> None:
    """Every setting has its row in configuration.md, with its variable and its default."""
    rows = [line for line in text("docs/configuration.md").splitlines() if line.startswith(f"| `{name}` | `{variable}` |")]
    assert len(rows) == 1, f"docs/configuration.md has {len(rows)} rows `| `{name}` | `{variable}` |`; one is right"
    cell = rows[0].split("|")[3].strip()
    assert default in ("", cell), f"the page says {cell}, the code {default}"


def test_no_setting_that_is_none() -> None:
    """Every variable in configuration.md is a setting."""
    others = {"NOTARY_KNOWN_NOTARIES", "NOTARY_IMAGE", *(jars.variable for jars in ALL if jars.variable.startswith("NOTARY_"))}
    named = set(re.findall(r"NOTARY_[A-Z_]+", text("docs/configuration.md")))
    known = {variable for _, variable, _ in settings()} | others
    assert not (named - known), f"docs/configuration.md names {sorted(named - known)}, which no setting has: remove or correct them there"
    assert not (known - named), f"docs/configuration.md does not name {sorted(known - named)}: add a row for each"


def test_every_metric_has_a_row() -> None:
    """metrics.md has a row for every metric, and for nothing else."""
    source = text("notary/metrics.py")
    rows = re.findall(r"^\| `(notary_[a-z_]+)` \| (\w+)", text("docs/metrics.md").split("## Alerts")[0], re.MULTILINE)
    names, metrics = [name for name, _ in rows], set(re.findall(r'"(notary_[a-z_]+)"', source))
    missing, superfluous = sorted(metrics - set(names)), sorted(set(names) - metrics)
    assert not missing, f"docs/metrics.md has no row for {missing}"
    assert not superfluous, f"notary/metrics.py has none of {superfluous}, which docs/metrics.md lists"
    assert len(names) == len(metrics), "docs/metrics.md has a row twice"
    wrong = [name for name, kind in rows if name.endswith("_total") != (kind == "counter")]
    assert not wrong, "counters, and they alone, end in _total"


def arguments_of(command: str) -> argparse.ArgumentParser:
    """Returns the parser of a command of `notary`. `verify-log` passes its arguments on to `spark_join verify`."""
    if command == "verify-log":
        (commands,) = (action.choices for action in verifier.parser()._actions if isinstance(action.choices, dict))
        found = commands["verify"]
        assert isinstance(found, argparse.ArgumentParser)
        return found
    parser = argparse.ArgumentParser(add_help=False)
    command_named(command).add_arguments(parser)
    return parser


def test_every_command_and_flag_is_named() -> None:
    """command-line.md names every command, and every flag of it in its section."""
    page = text("docs/command-line.md")
    for name in COMMANDS:
        parser = arguments_of(name)
        section = re.split(rf"^## notary {name}(?![\w-])", page, flags=re.MULTILINE)[1].split("\n## ")[0]
        for flag in re.findall(r"--[a-z-]+", parser.format_help()):
            assert flag in section or flag in ("--json", "--help"), f"{flag} of notary {name}"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_defaults_of_flags_are_on_the_page(command: str) -> None:
    """A default in command-line.md is the flag's default."""
    parser = arguments_of(command)
    section = re.split(rf"^## notary {command}(?![\w-])", text("docs/command-line.md"), flags=re.MULTILINE)[1].split("\n## ")[0]
    for action in parser._actions:
        rows = [line for line in section.splitlines() if action.option_strings and line.startswith(f"| `{action.option_strings[0]} ")]
        if rows and action.default not in (None, []):
            (returned,) = re.findall(r"default `?([\w\[\]*]+(?:\.\d+)?)", rows[0]) or ["nothing"]
            assert returned == (f"{action.default:g}" if isinstance(action.default, float) else str(action.default)), rows[0]


def test_every_problem_has_a_row() -> None:
    """http.md has a row for every problem."""
    rows = re.findall(r"^\| \d{3} \| `([a-z-]+)` \|", text("docs/http.md"), re.MULTILINE)
    assert sorted(rows) == sorted(NAMES)


@pytest.mark.parametrize("page", DOCS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    """Every link inside the project leads to an existing file and heading."""
    for link in _LINK.findall(_CODE_BLOCK.sub("", page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), link
        assert file.is_relative_to(ROOT), link
        assert not anchor or anchor in headings(file), link


def test_pages_and_sections_that_the_code_names() -> None:
    """Every page that a message or docstring names exists, and so does every section of the runbook that an error names."""
    runbook = headings(ROOT / "docs/runbook.md")
    for file in CODE:
        source = file.read_text()
        for page in re.findall(r"docs/[a-z-]+\.md", source):
            assert (ROOT / page).exists(), f"{file}: {page}"
        for section in re.findall(r"(?:RUNBOOK\}|docs/runbook\.md), '([^']+)'", source):
            assert section.lower().replace(" ", "-") in runbook, f"{file}: {section}"


@pytest.mark.parametrize("page", DOCS, ids=lambda file: str(file.relative_to(ROOT)))
def test_tests_that_a_page_names(page: Path) -> None:
    """Every test or test folder that a page names exists."""
    for path, name in re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", page.read_text()):
        assert (ROOT / path).exists(), path
        assert not name or f"def {name}(" in text(path), f"{path}::{name}"


def test_a_prepared_key_is_not_overwritten() -> None:
    """In operations.md no prepared key is copied to a machine where `ls` finds one, also in a shell that ignores errors."""
    (block,) = re.findall(r"^```sh\n([^`]*key prepare[^`]*)^```$", text("docs/operations.md"), re.MULTILINE)
    assert re.search(r'"! ls [^"]*\*\.next" &&\n +scp keys/', block)


def test_the_worked_example_hashes_to_its_id() -> None:
    """The bytes of the worked example in formats.md hash to its transaction id, which is the first of vectors.json."""
    first = msgspec.json.decode((ROOT / "tests/vectors.json").read_bytes())["requests"][0]["transaction_id"]
    example = text("docs/formats.md").split("## A worked example")[1]
    lines = example.split("```")[3].strip().splitlines()
    assert sha256(bytes.fromhex("".join(line.split()[0] for line in lines))).hexdigest() == first
    assert first in example.split("```")[4]


def test_rates_of_the_readme_are_measured() -> None:
    """The rate in README.md is that of three brokers in the table of performance.md, for submissions of the same number of requests."""
    ((rate, requests),) = re.findall(
        r"with three brokers, a notary\s+decides ([\d,]+) requests a second, in submissions of (\d+)", text("README.md")
    )
    head, *rows = [line for line in text("docs/performance.md").split("## In short")[1].splitlines() if line.startswith("| ")]
    assert head.split("|")[2].strip() == "three brokers"
    measured = [row.split("|")[2].strip() for row in rows if row.startswith(f"| {requests} requests a submission")]
    assert [each.partition("/s")[0] for each in measured] == [rate]


@pytest.mark.parametrize("word", ["clock_ms", "NAME_BYTES_MAX"])
def test_shared_words_are_defined_once(word: str) -> None:
    """A word that packages share is defined in `ordering` only, except in the independent verifier, which shares nothing."""
    defines = re.compile(rf"^(?:def {word}\(|{word}(?:: \w+)? =)", re.MULTILINE).search
    packages = [file.relative_to(ROOT).parts[0] for file in CODE if defines(file.read_text())]
    assert [package for package in packages if package != "spark_join"] == ["ordering"]


@pytest.mark.seconds
@pytest.mark.parametrize("prefix", ["", 'topic_prefix = "notary"\n'], ids=["default", "given"])
def test_the_runbook_names_restored_topics_in_every_configuration(tmp_path: Path, prefix: str) -> None:
    """The runbook's command after a deleted topic sets the prefix, also in a file without one, as `notary init` writes it by default."""
    line = next(line for line in text("docs/runbook.md").splitlines() if "topic_prefix = " in line and "sed -i" in line)
    file = tmp_path / "notary.toml"
    file.write_text(f'name = "O=N"\n\n[log]\nkind = "kafka"\n{prefix}\n[http]\nlisten = "127.0.0.1:8080"\n')
    subprocess.run(["sh", "-euc", line], cwd=tmp_path, check=True, timeout=10)
    found = tomllib.loads(file.read_text())
    assert found == {"name": "O=N", "log": {"kind": "kafka", "topic_prefix": "restored"}, "http": {"listen": "127.0.0.1:8080"}}
