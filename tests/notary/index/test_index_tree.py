"""The tree in the index: rows and tiles are compared with it, and a row or tile that differs is never returned."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joiner import Effect, OrderedBatch, Ready, RootSeen
from joiner.history import NO_CONTENT
from notary.decision import Conflict, Decision, Kind, Outcome, from_row, leaf, leaf_of_row, to_row
from notary.index import Index, IndexSettings, rocks
from notary.index import rows as index_rows
from notary.index.rocks import RocksStore
from notary.index.store import DECISIONS, POSITIONS, TILES
from notary.tree import leaf_hash, view_at
from ordering.errors import CorruptRecord, Fatal, FatalCode, Quarantined
from ordering.log import ORDERING
from ordering.pieces import completed
from payload import Request
from tests.notary.rows import put_closed_row

SMALL = IndexSettings(cache_bytes=8 << 20, write_buffer_bytes=8 << 20)
SIZE = 66_000
"""More than one full tile of level 1, so that the tree has a level 2."""


def request(number: int) -> Request:
    id_ = sha256(b"%d" % number).digest()
    return Request(id_, (id_ + bytes(4),), (), -(2**63), 2**63 - 1, bytes(32))


def step(first: int, count: int, roots: list[RootSeen] | None = None) -> Ready:
    asked = tuple([request(number) for number in range(first, first + count)])
    batch = OrderedBatch(first, 1, first + 1, 1000 + first, False, asked)
    return Ready({ORDERING: first + count, 0: 0}, 1000 + first, True, [batch], roots_seen=[*(roots or [])])


def opened(directory: Path) -> Index:
    return Index.open(directory, notary_name="n", log_identity="l", worker_name="a", settings=SMALL)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed index of SIZE decisions, for tests to copy."""
    directory = tmp_path_factory.mktemp("complete") / "index"
    index = opened(directory)
    for first in range(0, SIZE, 2_000):
        index.apply(step(first, 2_000))
    index.close()
    return directory


def flipped(row: bytes, at: int) -> bytes:
    return row[:at] + bytes([row[at] ^ 1]) + row[at + 1 :]


def row_of(directory: Path, which: str, key: bytes) -> bytes:
    store = RocksStore.open(directory, SMALL)
    row = store.family(which).get(key)
    store.close()
    assert row is not None
    return row


@pytest.fixture
def index(copied: Path) -> Iterator[Index]:
    made = opened(copied)
    yield made
    made.close()


conflicts = st.lists(
    st.builds(Conflict, st.binary(min_size=36, max_size=36), st.sampled_from(Kind), st.binary(min_size=32, max_size=32)), max_size=4
)


@given(st.integers(0, 2**63 - 1), st.binary(min_size=32, max_size=32), st.sampled_from(Outcome), st.integers(-(2**53), 2**53), conflicts)
def test_a_leaf_from_a_row_is_the_decisions_leaf(
    position: int, id_: bytes, outcome: Outcome, log_time_ms: int, listed: list[Conflict]
) -> None:
    """`leaf_of_row`, which does not decode the row, returns the same 104 bytes as `leaf`."""
    decision = Decision(position, id_, outcome, log_time_ms, tuple(listed))
    row = to_row(decision)
    assert leaf_of_row(id_, row) == leaf(decision) == leaf(from_row(id_, row))


@pytest.mark.parametrize("row", [b"", bytes(16), bytes(18), bytes(17 + 68)])
def test_a_row_of_another_length_has_no_leaf(row: bytes) -> None:
    """A row of an impossible length raises `CorruptRecord`."""
    with pytest.raises(CorruptRecord):
        leaf_of_row(bytes(32), row)


@pytest.mark.seconds
def test_leaves_and_roots_of_any_part(index: Index) -> None:
    """Leaves come from rows and roots of older sizes from tiles; both match a tree of the leaves."""
    assert [leaf_hash(one) for one in completed(index.leaves_in_pieces(300, 40))] == [
        index.tile(0, 1, 256)[at * 32 : (at + 1) * 32] for at in range(300 - 256, 340 - 256)
    ]
    for size in (0, 1, 255, 256, 257, 65_536, 65_537, SIZE):
        assert index.tree.root_at(size) == view_at(size, index.tree.tile).root


@pytest.mark.parametrize(("level", "number", "at"), [(0, 3, 0), (1, 0, 8191)])
def test_a_tile_that_was_changed_is_not_returned(copied: Path, level: int, number: int, at: int) -> None:
    """A flipped bit in a full tile contradicts the tile above: the tile is not returned, and the index never opens again."""
    key = index_rows.tile_key(level, number)
    put_closed_row(copied, TILES, key, flipped(row_of(copied, TILES, key), at))
    index = opened(copied)
    with pytest.raises(Quarantined, match="one of them was changed"):
        index.tile(level, number, 5)
    index.close()
    with pytest.raises(Quarantined, match="never answers again"):
        opened(copied)


def test_a_tile_that_was_cut_is_not_returned(copied: Path) -> None:
    """A tile that should be full and is cut off is not returned."""
    key = index_rows.tile_key(0, 3)
    put_closed_row(copied, TILES, key, row_of(copied, TILES, key)[:320])
    index = opened(copied)
    with pytest.raises(Quarantined, match="should be full"):
        index.tile(0, 3, 256)
    index.close()


@pytest.mark.parametrize("which", ["time", "id", "length"])
def test_a_row_that_was_changed_is_found_by_the_audit(copied: Path, which: str) -> None:
    """The audit finds any change in a decision, and a changed transaction at a position."""
    id_ = request(777).transaction_id
    row = row_of(copied, DECISIONS, id_)
    if which == "id":
        put_closed_row(copied, POSITIONS, index_rows.U64.pack(777), request(778).transaction_id)
    else:
        changed = {"time": flipped(row, 15), "length": row + b"x"}[which]
        put_closed_row(copied, DECISIONS, id_, changed)
    index = opened(copied)
    completed(index.audit(0))
    with pytest.raises(Quarantined):
        completed(index.audit(777 // 256))
    if which != "id":
        with pytest.raises(Quarantined):
            index.decision(id_)
    index.close()


def test_after_a_failed_write_nothing_is_returned_and_no_index_is_quarantined(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed write memory is ahead of the disk: every query raises `Fatal`, and the next start has a sound index."""
    index = opened(copied)

    def full(batch: object) -> None:
        raise Exception("IO error: No space left on device")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(index._store, "write", full)
        with pytest.raises(Fatal, match="No space left"):
            index.apply(step(SIZE, 10))
    assert index.broken
    for ask in (
        lambda: completed(index.leaves_in_pieces(SIZE - 10, 20)),
        lambda: index.decision(request(1).transaction_id),
        lambda: index.tile(0, 1, 1),
        lambda: completed(index.audit(SIZE // 256)),
        lambda: index.consumed(request(1).inputs[0]),
    ):
        with pytest.raises(Fatal, match="cannot be written") as caught:
            ask()
        assert not isinstance(caught.value, Quarantined)
    index.close()
    again = opened(copied)
    assert again.position_next == SIZE
    completed(again.audit(SIZE // 256))
    again.close()


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (lambda: RuntimeError("a bug"), FatalCode.INDEX_UNWRITABLE, "could not be written into the index .*RuntimeError"),
        (lambda: Fatal(FatalCode.INDEX_DAMAGED, "a tile is missing"), FatalCode.INDEX_DAMAGED, "^a tile is missing$"),
    ],
    ids=["a bug", "damaged"],
)
def test_after_a_step_that_failed_before_its_write_nothing_is_returned(
    copied: Path, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception], code: FatalCode, text: str
) -> None:
    """The tree in memory has the step's leaves, and the rows do not: every query raises `Fatal` until a restart."""
    index = opened(copied)

    def fail(*_: object) -> None:
        raise error()

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(index, "_compared", fail)
        with pytest.raises(type(error())):
            index.apply(step(SIZE, 10))
    for ask in (lambda: index.decision(request(1).transaction_id), lambda: index.tile(0, 1, 1), lambda: index.has_decided([bytes(32)])):
        with pytest.raises(Fatal, match=text) as caught:
            ask()
        assert caught.value.code is code
    index.close()
    again = opened(copied)
    assert again.position_next == SIZE
    again.close()


def test_roots_are_compared_at_their_place_in_the_step(index: Index) -> None:
    """A checkpoint between two batches of one step is compared with the tree at that place; one ahead of the tree waits."""
    ready = step(SIZE, 10)
    ready.batches.append(step(SIZE + 10, 10).batches[0])
    voters = frozenset("abc")
    at_end = RootSeen("b", 2, SIZE + 20, bytes(32), 0, voters, batches_before=1)
    ready.roots_seen = [at_end]
    index.apply(ready)
    assert disagrees(index)  # ahead of the tree at its place, reached at the step's end, and then another root
    assert index.agreement.votes.size == SIZE + 20
    assert index.agreement.size_last == 0


def test_a_quarantined_index_stays_so(copied: Path) -> None:
    """Two other workers have another root: the step is written together with the quarantine mark, and the index no longer opens."""
    index = opened(copied)
    roots = [RootSeen(name, number, SIZE, bytes(32), 0, frozenset("abc"), 0) for number, name in enumerate("bc", 2)]
    with pytest.raises(Quarantined, match=f"at {SIZE} decisions its root is"):
        index.apply(step(SIZE, 1, roots))
    index.close()
    with pytest.raises(Quarantined, match="never answers again"):
        opened(copied)


@pytest.mark.parametrize("by_vote", [True, False])
def test_a_quarantine_survives_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_vote: bool) -> None:
    """No record of the log has the mark, so the index syncs it before the worker stops. RocksDB counts the syncs of its write-ahead log."""
    made = rocks._database_options(SMALL)
    made.enable_statistics()
    monkeypatch.setattr(rocks, "_database_options", lambda settings: made)
    index = opened(tmp_path / "index")
    index.apply(step(0, 1))
    assert "rocksdb.wal.synced COUNT : 0\n" in str(made.get_statistics())
    if by_vote:
        roots = [RootSeen(name, number, 1, bytes(32), 0, VOTERS, 0) for number, name in enumerate("bc", 2)]
        with pytest.raises(Quarantined):
            index.apply(step(1, 1, roots))
    else:
        index.quarantine("a row is rotten")
    assert "rocksdb.wal.synced COUNT : 1\n" in str(made.get_statistics())
    index.close()


def test_a_quarantine_that_cannot_be_synced_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails while the mark is synced. The worker stops as quarantined, and reports both; it is no unexpected error."""
    index = opened(tmp_path / "index")
    index.apply(step(0, 1))

    def fail() -> None:
        raise RuntimeError("IO error: Input/output error")

    monkeypatch.setattr(index._store, "flush", fail)
    roots = [RootSeen(name, number, 1, bytes(32), 0, VOTERS, 0) for number, name in enumerate("bc", 2)]
    with pytest.raises(Quarantined, match=r"at 1 decisions its root is .*this mark cannot be written into the index: IO error"):
        index.apply(step(1, 1, roots))
    index.close()


VOTERS = frozenset("abc")
DECIDED = 7


def vote(offset: int, name: str, incarnation: int, size: int, root: bytes) -> RootSeen:
    return RootSeen(name, incarnation, size, root, 0, VOTERS, offset=offset)


def disagrees(index: Index) -> bool:
    """Returns True during a root disagreement."""
    return index.agreement.in_disagreement


def read(index: Index, *seen: RootSeen) -> None:
    """Apply a step of checkpoints alone: none of them takes effect, so a restart reads them again."""
    index.apply(Ready({ORDERING: 11}, 2000, True, roots_seen=list(seen)))


def decided_and_closed(directory: Path) -> list[bytes]:
    """Makes an index whose last record that took effect is at offset 10. Returns its root at each size."""
    index = opened(directory)
    ready = step(0, DECIDED)
    ready.effects = [Effect(1, bytes(32), 10, 1000, bytes(32), NO_CONTENT, 0, b"", 10, b"")]
    index.apply(ready)
    roots = [index.tree.root_at(size) for size in range(DECIDED + 1)]
    index.close()
    return roots


@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_what_is_read_again_is_compared_once(tmp_path: Path, restarts: int) -> None:
    """A vote that was read during a root disagreement opens no other one when it is read again after a restart (seed 20261300)."""
    roots = decided_and_closed(tmp_path)
    seen = [
        vote(11, "b", 9, 5, bytes(32)),
        vote(12, "b", 13, 6, bytes(31) + b"1"),
        vote(13, "a", 14, 5, roots[5]),
        vote(14, "c", 12, 5, roots[5]),
    ]
    index = opened(tmp_path)
    read(index, *seen)
    for _ in range(restarts):
        index.close()
        index = opened(tmp_path)
        for one in seen:
            read(index, one)
    read(index, vote(15, "c", 12, 7, roots[7]))
    assert not disagrees(index)
    assert index.agreement.votes.size == 7
    assert index.agreement.outvoted == {"b": (9, 5)}
    index.close()


def test_an_open_disagreement_stays_open_while_it_is_read_again(tmp_path: Path) -> None:
    """A worker that restarts during a root disagreement answers nothing before it has read again what opened it."""
    roots = decided_and_closed(tmp_path)
    agrees, differs = vote(11, "c", 12, 5, roots[5]), vote(12, "b", 9, 6, bytes(32))
    index = opened(tmp_path)
    read(index, agrees, differs)
    assert disagrees(index)
    index.close()
    index = opened(tmp_path)
    for one in (agrees, differs):
        read(index, one)
        assert disagrees(index)
        assert index.agreement.votes.size == 6
    read(index, vote(13, "a", 14, 6, roots[6]), vote(14, "c", 12, 6, roots[6]))
    assert not disagrees(index)
    index.close()


def test_an_audit_is_done_in_pieces(copied: Path) -> None:
    """A piece for each row, since one may be as long as 690 kB."""
    assert len(list(opened(copied).audit(0))) > 256
