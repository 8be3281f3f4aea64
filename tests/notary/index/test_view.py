"""A view of an index: a consistent snapshot while a worker goes on writing; damage raises an error."""

import errno
import itertools
import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from notary.decision import Decision, Outcome, leaf
from notary.index import IndexView, viewing
from notary.index import view as index_view
from notary.index.view import LINKS
from ordering import durable
from ordering.clock import clock_ms
from ordering.errors import Fatal
from ordering.log import ORDERING
from tests.checkers.tree import Tree
from tests.notary.index.test_index import _open, _request, _step, damage_block
from tests.notary.process import ROOT

REQUESTS = 50
VIEWS = 6

_WRITE = f"""
import sys
from pathlib import Path
from tests.notary.index.test_index import _open, _step
index = _open(Path(sys.argv[1]))
print("open", flush=True)
step = 0
while True:
    index.apply(_step(step, {REQUESTS}))
    step += 1
"""


def _hold(view: IndexView) -> int:
    """Returns the number of steps in the view, after checking that it has all their rows, no others, and the tree over them."""
    steps, rest = divmod(view.position_next, REQUESTS)
    assert rest == 0
    assert view.offsets_next == ({ORDERING: steps, 0: steps, 1: 0} if steps else {})
    decisions: list[Decision | None] = [None] * view.position_next
    for decision in view.decisions():
        assert decisions[decision.position] is None
        decisions[decision.position] = decision
    asked = [_request(step, number) for step in range(steps) for number in range(REQUESTS)]
    expected = [Decision(at, each.transaction_id, Outcome.COMMITTED, 1000 + at // REQUESTS) for at, each in enumerate(asked)]
    assert decisions == expected
    states = {state: (id_, position) for state, id_, position in view.states()}
    assert states == {each.inputs[0]: (each.transaction_id, at) for at, each in enumerate(asked)}
    assert view.root == Tree([leaf(decision) for decision in expected]).root(view.position_next)
    return int(steps)


@pytest.mark.seconds
def test_beside_a_process_that_writes(tmp_path: Path) -> None:
    """While a writer flushes and compacts 64 KiB buffers many times a second, each view is a consistent snapshot, and the views advance."""
    directory = tmp_path / "index"
    with subprocess.Popen([sys.executable, "-c", _WRITE, str(directory)], cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        tables: set[str] = set()
        steps: list[int] = []
        for _ in range(VIEWS):
            tables |= {file.name for file in directory.glob("*.sst")}
            with viewing(directory) as view:
                assert not list(directory.glob(".*")), "the links are gone, the view is there"
                while writer.poll() is None and len(steps) == 3 and len({file.name for file in directory.glob("*.sst")} - tables) < 20:
                    time.sleep(0.01)  # until the files of this view have been compacted away
                steps.append(_hold(view))
        assert writer.poll() is None
        writer.kill()
    assert all(earlier <= later for earlier, later in itertools.pairwise(steps))
    assert steps[0] < steps[-1]
    assert len(tables | {file.name for file in directory.glob("*.sst")}) > 20
    with viewing(directory) as view:
        assert _hold(view) >= steps[-1]
        assert view.payload_partitions == 2
        state = view.joiner_state()
        assert len(state.effects) == state.offsets_next[ORDERING]
    assert _open(directory).joiner_state().offsets_next[ORDERING] >= steps[-1]


def test_a_new_index_has_the_empty_root(tmp_path: Path) -> None:
    """A new index has no decisions, and the root of the empty tree."""
    _open(tmp_path / "index").close()
    with viewing(tmp_path / "index") as view:
        assert (view.notary_name, view.log_identity, view.payload_partitions) == ("N", "L", 0)
        assert view.joiner_state().log_state is None
        assert _hold(view) == 0


@pytest.mark.parametrize("name", ["states", "decisions"])
def test_a_damaged_block_names_index_and_remedy(copied: Path, name: str) -> None:
    """A block with a wrong checksum raises `Fatal`, which names the index and the remedy; its rows are not left out."""
    damage_block(copied, name)
    with viewing(copied) as view, pytest.raises(Fatal, match=rf"{copied} cannot be read: .*checksum.*\. Move the index away"):
        for _ in view.decisions() if name == "decisions" else view.states():
            pass


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*"])
def test_a_missing_file_names_the_index(copied: Path, pattern: str) -> None:
    """A missing file raises an error that names the index."""
    for file in copied.glob(pattern):
        file.unlink()
    with pytest.raises(Fatal, match=rf"the index {copied} (is damaged|does not open)") as returned, viewing(copied):
        pass
    assert ".export-" not in str(returned.value)
    assert not list(copied.glob(".*"))


def test_links_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    """They would keep the files of an old index on the disk. A folder of the last minutes may be in use."""
    with closing(_open(tmp_path / "index")) as index:
        index.apply(_step(0, REQUESTS))
    old, young = [tmp_path / "index" / f"{LINKS}{name}" for name in ("old", "young")]
    for folder in (old, young):
        folder.mkdir()
        (folder / "000009.sst").write_bytes(b"x")
    os.utime(old, (0, 0))
    with viewing(tmp_path / "index") as view:
        assert view.position_next == REQUESTS
    assert (old.exists(), young.exists()) == (False, True)


def test_links_in_use_stay_when_the_clock_jumps(complete: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps by two hours while one process opens the index, and another one opens it too: both get their view."""
    link = index_view.link_files
    links: list[Path] = []

    def then_another(directory: Path, of: Path) -> None:
        link(directory, of)
        links.append(of)
        if len(links) == 1:
            monkeypatch.setattr(durable, "clock_ms", lambda: clock_ms() + 2 * 3_600_000)
            with viewing(directory):
                assert (links[0] / "CURRENT").exists()

    monkeypatch.setattr(index_view, "link_files", then_another)
    with viewing(complete) as view:
        assert view.position_next > 0
    assert len(links) == 2


def test_links_of_another_user_prevent_no_view(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed export of root left a folder that only root may open. The scrub of the worker's user, and its exports, go on."""
    left = copied / f"{LINKS}of-root"
    left.mkdir()
    os.utime(left, (0, 0))
    locked = durable.locked_directory

    def closed(directory: Path) -> AbstractContextManager[None]:
        if directory == left:
            raise PermissionError(errno.EACCES, "Permission denied", str(left))
        return locked(directory)

    monkeypatch.setattr(durable, "locked_directory", closed)
    with viewing(copied) as view:
        assert view.position_next > 0
