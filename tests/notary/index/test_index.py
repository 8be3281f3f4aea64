"""The index on its store: its owner, the errors at opening, and the state after a crash (R8)."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from rocksdict import Options, Rdict

from joiner import Effect, IncarnationState, Joiner, LogState, Mark, OrderedBatch, Ready
from joiner.history import HISTORY_KEPT, NO_CONTENT
from notary.decision import Outcome
from notary.index import Index, IndexSettings, rows
from notary.index.index import LOOKED_UP_AT_ONCE, Found, _pieces_of
from notary.index.rocks import RocksFamily, RocksStore, check_settings, open_store
from notary.index.store import DECISIONS, FAMILIES, META
from notary.tree import TILE_WIDTH
from ordering.errors import ConfigurationError, Fatal
from ordering.ids import StateRef, TransactionId
from ordering.log import ORDERING
from ordering.pieces import completed
from payload import OPEN_FROM_MS, OPEN_UNTIL_MS, Request
from tests.checkers.tree import Tree
from tests.notary.rows import put_closed_row

SMALL = IndexSettings(cache_bytes=1 << 20, write_buffer_bytes=64 << 10)


def _open(directory: Path, notary_name: str = "N", log_identity: str = "L") -> Index:
    return Index.open(directory, notary_name=notary_name, log_identity=log_identity, settings=SMALL)


def _request(step: int, number: int) -> Request:
    id_ = sha256(b"%d %d" % (step, number)).digest()
    return Request(id_, (id_ + bytes(4),), (), OPEN_FROM_MS, OPEN_UNTIL_MS, bytes(32))


def _step(step: int, requests: int = 3) -> Ready:
    """Step 0, 1, ...: each reads one entry and decides that many requests; its rows follow from its number alone."""
    batch = OrderedBatch(step, 1, step + 1, 1000 + step, False, tuple([_request(step, number) for number in range(requests)]))
    state = IncarnationState(1, "w1", bytes(16), step + 1, False, 1000 + step)
    return Ready(
        {ORDERING: step + 1, 0: step + 1, 1: 0},
        1000 + step,
        True,
        [batch],
        [state],
        [_effect(step + 1)],
        {ORDERING: Mark(step, _hash(step + 1)), 0: Mark(2 * step, _hash(step + 1))},
        _log_state(step),
        agreed=step,
        suspicions={"w9": step},
    )


def _hash(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


def _effect(seen: int) -> Effect:
    return Effect(seen, _hash(seen), seen - 1, 999 + seen, _hash(seen), 0, 2 * seen - 2, _hash(-seen))


def _log_state(settled: int) -> LogState:
    return LogState(bytes(32), "N", "notary.example/n", b"o" * 32, b"k" * 32, (b"k" * 32,), 2, (1, 2), settled)


# ---- preparation ----


def _looks_up(index: Index, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that grows by the number of rows of each look-up."""
    counts: list[int] = []
    look_up = Index._look_up

    def counted(self: Index, ids: list[TransactionId], states: list[StateRef], found: Found) -> None:
        counts.append(len(ids) + len(states))
        look_up(self, ids, states, found)

    monkeypatch.setattr(Index, "_look_up", counted)
    return counts


def test_a_large_step_is_looked_up_in_pieces(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a prepared step are read before it, a bounded number at a time, and give the same decisions."""
    index.apply(_step(0, 10))
    step, counts = _step(1, 2_000), _looks_up(index, monkeypatch)
    step.batches[0] = msgspec.structs.replace(step.batches[0], requests=(_request(0, 7), *step.batches[0].requests))
    assert sum(1 for _ in index.prepare(step.batches[0].requests)) == len(counts) == 5
    (decisions,) = index.apply(step)
    assert len(counts) == 5
    assert [decision.position for decision in decisions] == [7, *range(10, 2_010)]
    assert index.position_next == 2_010


@pytest.mark.parametrize("rows_max", [2, 3, 7, 20])
def test_pieces_of_a_step_have_all_rows_in_order(rows_max: int) -> None:
    """No piece has more rows than allowed, and none is lost or repeated, whatever number of inputs and references a request has."""
    random = Random(rows_max)

    def states() -> tuple[bytes, ...]:
        return tuple([random.randbytes(36) for _ in range(random.choice([0, 1, 1, 2, rows_max - 1, rows_max, 2 * rows_max + 1]))])

    requests = [Request(random.randbytes(32), states(), states(), 0, 1, bytes(32)) for _ in range(200)]
    pieces = list(_pieces_of(requests, rows_max))
    assert all(0 < len(ids) + len(found) <= rows_max for ids, found in pieces)
    assert [id_ for ids, _ in pieces for id_ in ids] == [request.transaction_id for request in requests]
    assert [state for _, found in pieces for state in found] == [state for each in requests for state in (*each.inputs, *each.references)]


def test_a_request_of_many_states_is_looked_up_in_pieces(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request has up to 10,000 states: their rows are divided among the pieces too, and every one of them is found."""
    first = _step(0, 3_000)
    index.apply(first)
    spent = [state for request in first.batches[0].requests for state in request.inputs]
    step, counts = _step(1, 1), _looks_up(index, monkeypatch)
    large = msgspec.structs.replace(_request(1, 0), inputs=tuple(spent), references=tuple(spent[:5]))
    step.batches[0] = msgspec.structs.replace(step.batches[0], requests=(large,))
    assert sum(1 for _ in index.prepare(step.batches[0].requests)) == len(counts) == 4
    assert max(counts) <= LOOKED_UP_AT_ONCE
    assert sum(counts) == 3_006
    ((decision,),) = index.apply(step)
    assert len(counts) == 4
    assert len(decision.conflicts) == 3_000


def test_what_was_prepared_before_another_step_is_read_again(index: Index) -> None:
    """Rows that were read before another step's decisions decide nothing: the state was consumed meanwhile."""
    step = _step(1, 1)
    (request,) = step.batches[0].requests
    other = _step(0, 1)
    rival = msgspec.structs.replace(_request(0, 0), inputs=request.inputs)
    other.batches[0] = msgspec.structs.replace(other.batches[0], requests=(rival,))
    for _ in index.prepare(step.batches[0].requests):
        pass
    index.apply(other)
    ((decision,),) = index.apply(step)
    assert (decision.outcome, decision.conflicts[0].state) == (Outcome.INPUT_CONFLICT, request.inputs[0])


def test_a_step_that_comes_between_two_pieces_undoes_the_preparation(index: Index) -> None:
    """The driver never does that; the index does not rely on it."""
    step = _step(1, 1_500)
    pieces = index.prepare(step.batches[0].requests)
    next(pieces)
    other = _step(0, 1)
    rival = msgspec.structs.replace(_request(0, 0), inputs=step.batches[0].requests[0].inputs)
    other.batches[0] = msgspec.structs.replace(other.batches[0], requests=(rival,))
    index.apply(other)
    for _ in pieces:
        pass
    assert index.apply(step)[0][0].outcome is Outcome.INPUT_CONFLICT


# ---- new and reopened indexes ----


def test_a_new_index_reads_from_the_start(index: Index) -> None:
    """A new index has no decisions and reads each topic-partition from its start."""
    state = index.joiner_state()
    assert (index.position_next, state.log_time_ms, state.incarnations) == (0, 0, ())
    assert state.offsets_next == {ORDERING: 0}
    assert (state.log_state, list(state.effects), state.marks, state.agreed, state.suspicions) == (None, [], {}, 0, {})
    assert index.decision(bytes(32)) is None
    assert index.consumed(bytes(36)) is None
    assert index.transaction_at(0) is None


def test_everything_is_there_after_reopening(directory: Path) -> None:
    """After closing and opening, everything is there: rows, offsets, log time, incarnations, and the data that R10 compares."""
    index = _open(directory)
    answers = index.apply(_step(0))
    index.close()
    with closing(_open(directory)) as again:
        assert again.position_next == 3
        assert [again.decision(decision.transaction_id) for decision in answers[0]] == answers[0]
        state = again.joiner_state()
        assert state.offsets_next == {ORDERING: 1, 0: 1, 1: 0}
        assert (state.log_time_ms, state.incarnations) == (1000, (IncarnationState(1, "w1", bytes(16), 1, False, 1000),))
        assert (state.log_state, list(state.effects)) == (_log_state(0), [_effect(1)])
        assert state.marks == {ORDERING: Mark(0, _hash(1)), 0: Mark(0, _hash(1))}
        assert (state.agreed, state.suspicions) == (0, {"w9": 0})
        assert Joiner(state).history.view.history == _hash(1)


def test_a_step_without_batches_persists_its_offsets(index: Index) -> None:
    """A step that only moved the head persists its offsets."""
    index.apply(_step(0))
    index.apply(Ready({ORDERING: 9, 0: 7, 1: 4}, 1000, True))
    assert index.position_next == 3
    assert index.joiner_state().offsets_next == {ORDERING: 9, 0: 7, 1: 4}


def test_large_incarnations_and_names(index: Index) -> None:
    """Incarnations beyond one byte keep their order, and names may hold any text."""
    incarnations = [
        IncarnationState(n, f"Wörker {n} " + "x" * 200, bytes([n % 256]) * 16, 2**64 - 1, n % 2 == 0, -1) for n in range(1, 301)
    ]
    index.apply(Ready({ORDERING: 1, 0: 0, 1: 0}, 0, True, [], incarnations))
    assert index.joiner_state().incarnations == tuple(incarnations)


def test_a_record_without_content_is_read_back(index: Index) -> None:
    """A record without content, such as a register record, is read back unchanged."""
    effects = [Effect(1, _hash(1), 0, -5, _hash(1)), _effect(2), Effect(3, _hash(3), 2**63, 2**62, _hash(3))]
    index.apply(Ready({ORDERING: 3}, 0, True, effects=effects))
    assert list(index.joiner_state().effects) == effects
    assert effects[0].partition == NO_CONTENT


@pytest.mark.seconds
def test_only_the_last_effects_are_kept(index: Index) -> None:
    """The effects' rows overwrite each other, so that exactly the last `HISTORY_KEPT` are there, in order."""
    for first in (1, HISTORY_KEPT // 2 + 1, HISTORY_KEPT + 1):
        effects = [Effect(seen, _hash(seen), seen, 0, bytes(32)) for seen in range(first, first + HISTORY_KEPT // 2)]
        index.apply(Ready({ORDERING: first}, 0, True, effects=effects))
    found = index.joiner_state().effects
    assert len(found) == HISTORY_KEPT
    assert (found[0].seen, found[-1].seen) == (HISTORY_KEPT // 2 + 1, 3 * HISTORY_KEPT // 2)


def test_new_decisions_are_counted_once(index: Index) -> None:
    """New decisions are counted by outcome once; earlier decisions are not counted again."""
    index.apply(_step(0))
    index.apply(_step(0))
    assert index.take_outcome_counts() == [3 if outcome is Outcome.COMMITTED else 0 for outcome in Outcome]
    assert not any(index.take_outcome_counts())


# ---- errors at opening ----


def test_a_second_opening_is_rejected(index: Index, directory: Path) -> None:
    """A second opening in the same process is rejected as in use, and does not disturb the first."""
    with pytest.raises(ConfigurationError, match="in use"):
        _open(directory)
    index.apply(_step(0))


_HOLD = """
import sys
from rocksdict import Rdict
store = Rdict(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.seconds
def test_locked_by_another_process(directory: Path) -> None:
    """An index that another process holds is rejected as in use, and opens once that process is gone."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(ConfigurationError, match="in use by another process"):
            _open(directory)
        holder.kill()


def test_settings_are_read_back(directory: Path) -> None:
    """A store with any other option than the wanted one is rejected."""
    with closing(open_store(directory, SMALL)) as store:
        check_settings(store, directory, SMALL)
        for other, named in [
            (IndexSettings(cache_bytes=1 << 21, write_buffer_bytes=64 << 10), "cache"),
            (IndexSettings(cache_bytes=1 << 20, write_buffer_bytes=128 << 10), "write_buffer_size"),
            (IndexSettings(cache_bytes=1 << 20, write_buffer_bytes=64 << 10, background_jobs=5), "max_background_jobs"),
        ]:
            with pytest.raises(Fatal, match=named):
                check_settings(store, directory, other)
        options = max(directory.glob("OPTIONS-*"))  # the newest: one is written for each option that is set later
        written = options.read_text()
        for there, other_text, named in [
            ("filter_policy=bloomfilter", "filter_policy=nullptr", "filter_policy"),
            ("prefix_extractor=max_len", "prefix_extractor=nullptr", "prefix_extractor"),
            ("id=HashLinkListRepFactory", "id=SkipListFactory", "memtable_factory"),
            ("bucket_count=256;", "bucket_count=1;", "memtable_factory"),
            ("uncache_aggressiveness=1000", "uncache_aggressiveness=0", "uncache_aggressiveness"),
        ]:
            assert there in written
            options.write_text(written.replace(there, other_text))
            with pytest.raises(Fatal, match=named):
                check_settings(store, directory, SMALL)


def test_other_memtables_and_filters(directory: Path) -> None:
    """Memtables and filters are not part of the format: rows written with RocksDB's defaults can be read, and the other way round."""
    plain: dict[str, Options] = {name: Options(raw_mode=True) for name in ("default", *FAMILIES)}
    written = {name: [(bytes([number]) * 36, b"%d" % number) for number in range(200)] for name in FAMILIES}

    def write(store: Rdict, numbers: slice) -> None:
        for name, rows_of in written.items():
            family = store.get_column_family(name)
            for key, row in rows_of[numbers]:
                family.put(key, row)

    complete = Options(raw_mode=True)
    complete.create_missing_column_families(True)
    store = Rdict(str(directory), options=complete, column_families=dict(plain))
    write(store, slice(0, 50))
    for name in FAMILIES:
        store.get_column_family(name).flush()
    write(store, slice(50, 100))  # these stay in the write-ahead log
    store.close()
    ours = open_store(directory, SMALL)
    write(ours, slice(100, 200))
    ours.close()
    ways: list[Callable[[], Any]] = [
        lambda: open_store(directory, SMALL),
        lambda: Rdict(str(directory), options=complete, column_families=dict(plain)),
    ]
    for opens in ways:
        opened = opens()
        for name, rows_of in written.items():
            assert opened.get_column_family(name).get([key for key, _ in rows_of]) == [row for _, row in rows_of]
            assert list(RocksFamily(opened, name).items()) == rows_of
        opened.close()


# ---- damage: `Fatal` with a remedy, never a wrong answer ----

STEPS = 40


def rocks(index: Index) -> RocksStore:
    """Returns the index's store, which is a real RocksDB in these tests."""
    assert isinstance(index._store, RocksStore)
    return index._store


def into_tables(index: Index, families: Sequence[str]) -> None:
    """Move the rows that are only in the write-ahead log into table files."""
    for name in families:
        rocks(index)._store.get_column_family(name).flush()


def _open_or_fatal(directory: Path) -> tuple[Index | None, str]:
    try:
        return _open(directory), ""
    except Fatal as problem:
        return None, str(problem)


def _each(pattern: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        files = sorted(directory.glob(pattern))
        assert files
        for file in files:
            file.write_bytes(change(file.read_bytes()))

    return damage


def _remove(pattern: str) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        for file in directory.glob(pattern):
            file.unlink()

    return damage


def _flip(data: bytes) -> bytes:
    return bytes([byte ^ 0xFF if at % 97 == 20 else byte for at, byte in enumerate(data)])


DAMAGE: dict[str, Callable[[Path], None]] = {
    "current-garbage": _each("CURRENT", lambda _: b"nonsense\n"),
    "current-empty": _each("CURRENT", lambda _: b""),
    "current-gone": _remove("CURRENT"),
    "manifest-flipped": _each("MANIFEST-*", _flip),
    "manifest-torn": _each("MANIFEST-*", lambda data: data[: len(data) // 2]),
    "manifest-empty": _each("MANIFEST-*", lambda _: b""),
    "manifest-gone": _remove("MANIFEST-*"),
    "tables-flipped": _each("*.sst", _flip),
    "tables-torn": _each("*.sst", lambda data: data[: len(data) // 2]),
    "tables-empty": _each("*.sst", lambda _: b""),
    "tables-gone": _remove("*.sst"),
    "tables-one-bit": _each("*.sst", lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:]),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_index_never_loses_a_part(copied: Path, damage: Callable[[Path], None]) -> None:
    """A damaged index raises `Fatal` with a remedy, at opening or at a query, or starts empty. It never loses only a part."""
    damage(copied)
    index, said = _open_or_fatal(copied)
    if index is None:
        assert str(copied) in said
        assert "replay the log" in said
        return
    with closing(index):
        if index.position_next == 0:
            assert index.joiner_state().offsets_next == {ORDERING: 0}
            return
        with pytest.raises(Fatal, match="cannot be read"):
            index.apply(_step(0))


def damage_block(directory: Path, name: str) -> None:
    """Change a bit of a family's table files."""
    key_bytes = {"states": 36, "decisions": 32}[name]
    index = _open(directory)
    damaged = [file["name"].strip("/") for file in rocks(index)._store.live_files() if len(file["start_key"]) == key_bytes]
    index.close()
    assert damaged
    for file in damaged:
        data = bytearray((directory / file).read_bytes())
        data[5000] ^= 1  # in the file's second block: opening reads the last decision, which is in the first
        (directory / file).write_bytes(data)


@pytest.mark.parametrize("name", ["states", "decisions"])
def test_a_damaged_block_is_fatal(copied: Path, name: str) -> None:
    """A block with a wrong checksum raises `Fatal` in a step and in a query, and nothing is decided without its rows."""
    damage_block(copied, name)
    with closing(_open(copied)) as index:
        answered = 0
        for step in range(STEPS):
            for number in range(3):
                request = _request(step, number)
                with suppress(Fatal):
                    found = index.decision(request.transaction_id) if name == "decisions" else index.consumed(request.inputs[0])
                    assert found is not None
                    answered += 1
        assert answered < STEPS * 3
        everything = _step(STEPS)
        everything.batches = [batch for step in range(STEPS) for batch in _step(step).batches]
        with pytest.raises(Fatal, match="checksum"):
            index.apply(everything)
        assert index.position_next == STEPS * 3


def test_a_scan_raises_at_a_damaged_block(directory: Path) -> None:
    """A scan over rows raises at a block with a wrong checksum, and does not end early."""
    index = _open(directory)
    for step in range(300):
        ready = _step(step)
        ready.incarnations = [IncarnationState(step + 1, f"worker {step}", step.to_bytes(16, "big"), 1, False, 1)]
        index.apply(ready)
    into_tables(index, [META])
    index.close()
    store = open_store(directory, SMALL, read_only=True)  # a writable store may still compact its tables
    names = [file["name"].strip("/") for file in store.live_files() if file["start_key"] == rows.SUSPICIONS_KEY]
    store.close()
    assert names
    for table in [directory / name for name in names]:
        data = bytearray(table.read_bytes())
        data[len(data) // 2] ^= 1
        table.write_bytes(data)
    reopened, said = _open_or_fatal(directory)
    if reopened is None:
        assert "checksum" in said
        return
    with closing(reopened), pytest.raises(Fatal, match=r"cannot be read: .*checksum"):
        reopened.joiner_state()


@pytest.mark.parametrize("position_next", [STEPS * 3 + 1, STEPS * 3 - 1])
def test_rows_that_do_not_reach_the_progress(copied: Path, position_next: int) -> None:
    """Opening finds a progress row beyond the last rows, as after restoring single files."""
    put_closed_row(copied, META, rows.PROGRESS_KEY, rows.PROGRESS.pack(position_next, 1))
    with pytest.raises(Fatal, match="do not end at position"):
        _open(copied)


def test_rows_that_are_none(directory: Path) -> None:
    """A metadata row that does not decode raises `Fatal`."""
    keys = (rows.FORMAT_KEY, rows.PROGRESS_KEY, rows.LOG_STATE_KEY, rows.SUSPICIONS_KEY, rows.AGREEMENT_KEY)
    for key in (*keys, rows.offset_key(0), rows.incarnation_key(1), rows.mark_key(0), rows.effect_key(1)):
        shutil.rmtree(directory, ignore_errors=True)
        _open(directory).close()
        put_closed_row(directory, META, key, b"xyz")
        opened: list[Index] = []
        with pytest.raises(Fatal, match="replay the log"):  # noqa: PT012 - either statement may raise
            opened.append(_open(directory))
            opened[0].joiner_state()
        for index in opened:
            index.close()


@pytest.mark.seconds
def test_torn_write_ahead_log(directory: Path) -> None:
    """A machine's crash takes complete steps off the write-ahead log's end: rows and offsets are lost together."""
    index = _open(directory)
    for step in range(STEPS):
        index.apply(_step(step))
    copy = directory.with_name("copy")
    kept = set()
    _until_idle(index)
    for cut in (1, 100, 8_000, 12_000, 20_000):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(directory, copy)
        log = max([file for file in copy.glob("*.log") if file.stat().st_size], key=lambda file: file.name)
        log.write_bytes(log.read_bytes()[:-cut])
        torn = _open(copy)
        kept.add(_steps_of(torn))
        torn.close()
    index.close()
    assert max(kept) < STEPS
    assert len(kept) > 2


def _until_idle(index: Index) -> None:
    """Wait until RocksDB neither flushes nor compacts: it deletes files meanwhile."""
    names = ("mem-table-flush-pending", "num-running-flushes", "compaction-pending", "num-running-compactions")
    handles = [family.handle for family in rocks(index)._families.values()]
    deadline_s = time.monotonic() + 60
    while any(handle.property_int_value(f"rocksdb.{name}") for handle in handles for name in names):
        assert time.monotonic() < deadline_s, "RocksDB works for a minute"
        time.sleep(0.01)


def _steps_of(index: Index) -> int:
    """Returns the number of steps in the index, after checking that it has all their rows and no others."""
    state = index.joiner_state()
    steps = state.offsets_next[ORDERING]
    assert index.position_next == 3 * steps
    assert state.offsets_next == ({ORDERING: steps, 0: steps, 1: 0} if steps else {ORDERING: 0})
    assert list(state.effects) == [_effect(step + 1) for step in range(steps)]
    assert state.marks == ({ORDERING: Mark(steps - 1, _hash(steps)), 0: Mark(2 * steps - 2, _hash(steps))} if steps else {})
    assert state.log_state == (_log_state(steps - 1) if steps else None)
    assert (state.agreed, state.suspicions) == ((steps - 1, {"w9": steps - 1}) if steps else (0, {}))
    assert state.log_time_ms == (999 + steps if steps else 0)
    assert [state.sequence_last for state in state.incarnations] == ([steps] if steps else [])
    asked = [_request(step, number) for step in range(steps) for number in range(3)]
    assert [index.transaction_at(position) for position in range(3 * steps)] == [request.transaction_id for request in asked]
    assert all(index.decision(request.transaction_id) is not None for request in asked)
    found = {name: len(rows_found) for name, rows_found in index.contents().items()}
    tiles = Tree([b""] * 3 * steps).tiles(3 * steps)
    assert found == dict.fromkeys(("states", "decisions", "positions"), 3 * steps) | {"tiles": len(tiles)}
    for tile in range((3 * steps + 255) // 256):
        completed(index.audit(tile))
    return steps


# ---- kill -9 ----


@pytest.mark.seconds
def test_a_kill_leaves_complete_steps(directory: Path) -> None:
    """After a kill at any moment the index has complete steps, and every step that had returned; applying continues from there."""
    step = 0
    for applied_before_kill in (1, 30, 77):
        with subprocess.Popen(
            [sys.executable, __file__, str(directory), str(step)], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": "."}
        ) as child:
            assert child.stdout is not None
            returned = step
            for line in child.stdout:
                returned = int(line)
                if returned >= step + applied_before_kill:
                    child.send_signal(signal.SIGKILL)
                    break
            # Steps that it reported between the signal and its end had returned too.
            returned = max([returned, *map(int, child.stdout.read().splitlines()[:-1])])
        with closing(_open(directory)) as index:
            step = _steps_of(index)
            assert step >= returned
            index.apply(_step(step))
            step += 1


def _apply_for_ever(directory: Path, step: int) -> None:
    index = _open(directory)
    while True:
        index.apply(_step(step))
        step += 1
        print(step, flush=True)


if __name__ == "__main__":
    _apply_for_ever(Path(sys.argv[1]), int(sys.argv[2]))


@pytest.mark.seconds
def test_an_audit_leaves_the_cache_to_what_is_looked_up(tmp_path: Path) -> None:
    """The rows that audits and monitors read do not enter the block cache: at 256 rows a second they would fill it within minutes."""
    settings = IndexSettings(cache_bytes=64 << 20, write_buffer_bytes=256 << 10)

    def cached(index: Index) -> int:
        return int(rocks(index)._families[DECISIONS].handle.property_int_value("rocksdb.block-cache-usage"))

    def opened() -> Index:
        return Index.open(tmp_path, notary_name="N", log_identity="L", settings=settings)

    index = opened()
    for step in range(20):
        index.apply(_step(step, 512))
    index.close()
    growth = []
    for looked_up in (False, True):
        index = opened()
        _until_idle(index)  # a compaction takes the filters of the files that it deletes from the cache
        filters = cached(index)
        for tile in range(index.position_next // TILE_WIDTH):
            completed(index.audit(tile))
            for position in range(tile * TILE_WIDTH, (tile + 1) * TILE_WIDTH if looked_up else 0):
                assert index.decision(index.transaction_at(position) or b"") is not None
        growth.append(cached(index) - filters)
        index.close()
    audited, looked_up_too = growth
    assert audited == 0
    rows_bytes = index.position_next * 100  # of both families, with RocksDB's own
    assert looked_up_too > rows_bytes / 2
