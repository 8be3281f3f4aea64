"""The contract of `notary.index.store`, tested with RocksDB and with the simulator's disk."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from notary.index import IndexSettings
from notary.index.rocks import COUNTED_WRITES, FILLING_PART, RocksStore, open_store
from notary.index.store import DECISIONS, FAMILIES, META, STATES, Reading, Store
from ordering.errors import Fatal, FatalCode
from ordering.settings import INTEGER_MAX
from tests.open_files import errors_with_few_open_files
from tests.simulation.disk import SimulatedDisk, SimulatedStore

Opens = Callable[[], Store]


@pytest.fixture(params=["rocks", "simulated"])
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opens]:
    """Opens the same store again and again; each one is closed before the next is opened."""
    opened: list[Store] = []
    disk = SimulatedDisk("disk")

    def open_again() -> Store:
        if opened:
            opened.pop().close()
        small = IndexSettings(cache_bytes=1 << 20, write_buffer_bytes=64 << 10)
        opened.append(RocksStore.open(tmp_path, small) if request.param == "rocks" else SimulatedStore(disk, lambda where: None))
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()


def write(store: Store, *rows: tuple[str, bytes, bytes]) -> None:
    batch = store.new_batch()
    for family, key, value in rows:
        batch.put(key, value, store.handle(family))
    store.write(batch)


def test_what_is_written_is_read_at_once_and_after_opening_again(opens: Opens) -> None:
    """One key, or many in the order given, return their rows, with None for missing keys; families do not mix."""
    store = opens()
    write(store, (STATES, b"a", b"1"), (DECISIONS, b"a", b"2"), (STATES, b"b", b"3"))
    for again in (False, True):
        reading = opens() if again else store
        assert reading.family(STATES).get(b"a") == b"1"
        assert reading.family(DECISIONS).get(b"a") == b"2"
        assert reading.family(META).get(b"a") is None
        assert reading.family(STATES).get([b"b", b"c", b"a"]) == [b"3", None, b"1"]
        assert reading.family(STATES).get([]) == []


def test_the_later_row_wins(opens: Opens) -> None:
    """A later row with the same key overwrites an earlier one, in a later batch and in the same batch."""
    store = opens()
    write(store, (META, b"k", b"1"))
    write(store, (META, b"k", b"2"), (META, b"k", b"3"))
    assert store.family(META).get(b"k") == b"3"


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_come_in_the_order_of_their_keys(opens: Opens, name: str) -> None:
    """Rows are in key order from a given key on, present or not, in both kinds of families."""
    store = opens()
    write(store, *[(name, key, key) for key in (b"b", b"\xff", b"a", b"b\x00", b"c")])
    assert [key for key, _ in store.family(name).items()] == [b"a", b"b", b"b\x00", b"c", b"\xff"]
    assert [key for key, _ in store.family(name).items(from_key=b"b\x00")] == [b"b\x00", b"c", b"\xff"]
    assert [key for key, _ in store.family(name).items(from_key=b"bb")] == [b"c", b"\xff"]


def test_a_batch_that_is_not_written_is_nothing(opens: Opens) -> None:
    """Rows can be read when `write` returns, not when they are put."""
    store = opens()
    store.new_batch().put(b"a", b"1", store.handle(META))
    assert store.family(META).get(b"a") is None


def test_flushing_keeps_everything(opens: Opens) -> None:
    """A flush changes no row."""
    store = opens()
    write(store, (META, b"a", b"1"))
    store.flush()
    assert opens().family(META).get(b"a") == b"1"


class TestTheSimulatedDisk:
    """Features of the simulated disk alone."""

    def test_loses_complete_batches_and_nothing_that_was_flushed(self) -> None:
        """After a crash the disk has a prefix of the written batches, and at least the flushed ones."""
        for seed in range(50):
            disk = SimulatedDisk(f"disk {seed}")
            disk._draw.random()  # another prefix
            for number in range(10):
                disk.write([(META, b"%d" % number, b"x"), (STATES, b"%d" % number, b"x")])
                if number == 3:
                    disk.flush()
            lost = disk.lose_unflushed()
            left = sorted(disk.families[META])
            assert left == [b"%d" % number for number in range(10 - lost)]
            assert sorted(disk.families[STATES]) == left
            assert len(left) >= 4

    def test_a_full_disk_writes_nothing_of_the_batch(self) -> None:
        """A write to a full disk raises, and leaves nothing of the batch."""
        disk = SimulatedDisk("disk")
        disk.full = True
        with pytest.raises(Exception, match="No space left"):
            disk.write([(META, b"a", b"1")])
        assert not disk.families[META]

    def test_a_snapshot_restores_the_rows_of_its_batch(self) -> None:
        """Restoring a snapshot gives the rows as they were after that many batches."""
        disk = SimulatedDisk("disk")
        disk.write([(META, b"a", b"1")])
        disk.write([(META, b"a", b"2")])
        disk.restore(1)
        assert disk.families[META] == {b"a": b"1"}


def test_a_full_disk_is_no_second_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOCK is one of the first files of a new index. Without space for it, no other process has the index open."""

    def full(*_: object, **__: object) -> None:
        why = "No space left on device"
        raise Exception(f"IO error: {why}: while open a file for lock: {tmp_path}/LOCK: {why}")  # as RocksDB writes it

    monkeypatch.setattr("notary.index.rocks.Rdict", full)
    with pytest.raises(Fatal, match="Free or replace its disk") as raised:
        RocksStore.open(tmp_path, IndexSettings())
    assert raised.value.code is FatalCode.DISK_FULL


@pytest.mark.parametrize("why", ["No space left on device", "Disk quota exceeded"])
def test_a_disk_that_fills_while_an_index_opens(why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options are set after RocksDB has opened, and it writes them into a file. The index can be opened again once there is space."""

    def full(*_: object) -> None:
        raise Exception(f"IO error: Unable to persist options.: IO error: {why}")

    with monkeypatch.context() as patched:
        patched.setattr("notary.index.rocks.check_settings", full)
        with pytest.raises(Fatal, match=rf"does not open.*{why}.*Free or replace its disk") as raised:
            RocksStore.open(tmp_path, IndexSettings())
    assert raised.value.code is FatalCode.DISK_FULL
    RocksStore.open(tmp_path, IndexSettings()).close()


def test_an_index_that_needs_more_open_files_is_not_damaged(tmp_path: Path) -> None:
    """All files of an index stay open, so a large one needs thousands. No message proposes to move it away, or to stop a process."""
    RocksStore.open(tmp_path, IndexSettings()).close()
    problems = errors_with_few_open_files(lambda: RocksStore.open(tmp_path, IndexSettings()).close(), Fatal)
    assert {problem.code for problem in problems if isinstance(problem, Fatal)} == {FatalCode.OPEN_FILES}
    assert [problem for problem in problems if "Raise the limit" not in str(problem)] == []


def test_an_error_that_is_not_the_disks_is_named() -> None:
    """A worker without memory must not advise to move its index away, and other errors show their type: they may be a bug."""
    with pytest.raises(MemoryError), Reading(Path("index")):
        raise MemoryError
    with pytest.raises(Fatal, match=r"cannot be read: KeyError\('lost'\)\. Move the index away"), Reading(Path("index")):
        raise KeyError("lost")


def test_filters_of_a_large_index_are_in_parts(tmp_path: Path) -> None:
    """Once the filters of all rows need half of the cache, new files have partitioned filters, at once after opening too; all rows stay."""
    settings = IndexSettings(cache_bytes=16 << 10, write_buffer_bytes=64 << 10)
    rows = [(sha256(b"%d" % number).digest(), b"%d" % number) for number in range(12_800)]
    store = RocksStore.open(tmp_path, settings)
    try:
        in_parts = []
        for at in range(0, len(rows), 25):
            write(store, *[(STATES, key, value) for key, value in rows[at : at + 25]])
            in_parts.append(_in_parts(tmp_path))
        assert in_parts == sorted(in_parts)
        assert store.filter_bytes == pytest.approx(len(rows) * settings.bloom_bits_per_key / 8, rel=0.01)
        assert set(in_parts) == {False, True}
        store.close()
        store = RocksStore.open(tmp_path, settings)
        assert _in_parts(tmp_path)
        assert store.cache_bytes == settings.cache_bytes < store.filter_bytes
        keys = [key for key, _ in rows]
        assert store.family(STATES).get(keys) == [value for _, value in rows]
        assert store.family(STATES).get([sha256(key).digest() for key in keys]) == [None] * len(keys)
    finally:
        store.close()


def test_a_large_filter_stays_in_the_cache(tmp_path: Path) -> None:
    """Lookups of missing keys do not read a filter again and again that needs a third of the cache."""
    settings = IndexSettings(cache_bytes=2 << 20, bloom_bits_per_key=48)
    rows = settings.cache_bytes // 16  # of 6 bytes each in the filter
    store = RocksStore.open(tmp_path, settings)
    write(store, *[(STATES, sha256(b"%d" % number).digest(), b"") for number in range(rows)])
    store.close()
    opened = open_store(tmp_path, settings)
    opened.get_column_family(STATES).compact_range(None, None)  # filters of the first level stay in memory
    opened.close()
    with closing(RocksStore.open(tmp_path, settings)) as store:
        before = _read_bytes()
        for number in range(rows, rows + 1_000):
            assert store.family(STATES).get(sha256(b"%d" % number).digest()) is None
        assert _read_bytes() - before < settings.cache_bytes


def test_rows_read_in_passing_do_not_enter_the_cache(tmp_path: Path) -> None:
    """One row, a list of rows and all rows in order are read without an effect on the cache; a lookup has one."""
    rows = {sha256(b"%d" % number).digest(): bytes(100) for number in range(2_000)}
    _write_files(tmp_path, rows)
    with closing(RocksStore.open(tmp_path, IndexSettings())) as store:
        states, keys = store.family(STATES), list(rows)
        assert states.get(keys[:1]) == [rows[keys[0]]]  # loads the filter and the index of the file
        before = _cached_bytes(store)
        assert [states.get_in_passing(key) for key in keys] == states.get_in_passing(keys) == list(rows.values())
        assert dict(states.items()) == rows
        assert _cached_bytes(store) == before
        assert states.get(keys) == list(rows.values())
        assert _cached_bytes(store) > before + len(rows) * 100


@pytest.mark.parametrize("filters_fit", [True, False])
def test_lookups_fill_the_cache_after_opening_and_now_and_then(filters_fit: bool, tmp_path: Path) -> None:
    """Between, they fill it only if its filters are partitioned: they would not return to a cache that had dropped them."""
    rows = {sha256(b"%d" % number).digest(): bytes(100) for number in range(2_000)}
    _write_files(tmp_path, rows)
    settings = IndexSettings(cache_bytes=(64 << 20) if filters_fit else 4_000)
    with closing(RocksStore.open(tmp_path, settings)) as store:
        states = store.family(STATES)
        fills = []
        for number in range(2 * FILLING_PART * COUNTED_WRITES + 1):
            if number % COUNTED_WRITES in (0, COUNTED_WRITES - 1):
                fills.append(states.get is not states.get_in_passing)
            write(store, (META, b"k", b"%d" % number))
        if not filters_fit:
            assert all(fills)
            return
        assert fills == 2 * ([True] * 2 + [False] * (2 * FILLING_PART - 2)) + [True]


@pytest.mark.parametrize("cache_bytes", [1, INTEGER_MAX])
def test_any_cache_that_a_setting_allows_opens(cache_bytes: int, tmp_path: Path) -> None:
    """RocksDB reserves addresses for the cache's table by its size, and with 16 TiB the process ends without a message."""
    with closing(RocksStore.open(tmp_path, IndexSettings(cache_bytes=cache_bytes, write_buffer_bytes=64 << 10))) as store:
        keys = [number.to_bytes(32) for number in range(5_000)]
        write(store, *[(STATES, key, key) for key in keys])
        assert store.family(STATES).get(keys) == keys


def _cached_bytes(store: RocksStore) -> int:
    return int(store._families[STATES].handle.property_int_value("rocksdb.block-cache-usage"))


def _write_files(directory: Path, rows: dict[bytes, bytes]) -> None:
    """Write these states into a file, so that RocksDB does not read them from a memtable."""
    with closing(RocksStore.open(directory, IndexSettings())) as store:
        write(store, *[(STATES, key, row) for key, row in rows.items()])
    opened = open_store(directory, IndexSettings())
    opened.get_column_family(STATES).compact_range(None, None)
    opened.close()


def _read_bytes() -> int:
    """Returns the bytes that this process has read so far, from disks or the system's cache."""
    return int(Path("/proc/self/io").read_text().split()[1])


def _in_parts(directory: Path) -> bool:
    options = max(directory.glob("OPTIONS-*")).read_text()
    _, _, table = options.partition(f'[TableOptions/BlockBasedTable "{STATES}"]')
    return "partition_filters=true" in table.partition("[")[0]


def test_small_memtables_are_flushed_together_and_closing_flushes_nothing(tmp_path: Path) -> None:
    """Eight memtables become one table file. Later rows are in the write-ahead log, and come back."""
    settings = IndexSettings(cache_bytes=1 << 20, write_buffer_bytes=8 << 16)
    store = RocksStore.open(tmp_path, settings)
    keys, states = [sha256(b"%d" % at).digest() for at in range(20_000)], store._families[STATES].handle
    for key in keys:
        write(store, (STATES, key, key))
        if states.property_value("rocksdb.num-files-at-level0") != "0" or states.property_int_value("rocksdb.num-immutable-mem-table") >= 8:
            break
    for _ in range(4_000):  # no more is written, so there is no second flush
        if states.property_value("rocksdb.num-files-at-level0") != "0":
            break
        time.sleep(0.005)
    flushed = list(tmp_path.glob("*.sst"))
    assert len(flushed) == 1
    written = keys[: keys.index(key) + 1]
    del states
    store.close()
    assert list(tmp_path.glob("*.sst")) == flushed
    store = RocksStore.open(tmp_path, settings)
    assert store.family(STATES).get(written) == written
    store.close()
