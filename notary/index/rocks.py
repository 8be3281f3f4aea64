"""`RocksStore`: the index's store in RocksDB, and the options of each column family.

RocksDB takes options at every open, and reports nothing when it ignores some. If it opens a store without the names of its families, it
runs at a fraction of the speed, with an 8 MiB cache and no bloom filter. So after opening, `check_settings` reads back the options in
force, from RocksDB's properties and from its OPTIONS file. If one differs from its setting, the worker does not start.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    MemtableFactory,
    Options,
    Rdict,
    ReadOptions,
    SliceTransform,
    WriteBatch,
)

from notary.index.store import DECISIONS, FAMILIES, STATES, Family, Reading, raise_if_out_of_resources
from ordering.errors import ConfigurationError, Fatal, FatalCode
from ordering.settings import Fixed, Positive

MEMTABLE_BLOOM_RATIO: Final = 0.02
"""The part of a memtable that its bloom filter takes: about 16 bits for each row of a hash."""
INDEX_RESTART_INTERVAL: Final = 16
"""The number of entries of an SST file's index between two complete keys. With 1, indexes need three times the cache."""
LOOKED_UP: Final = (STATES, DECISIONS)
"""The families where most lookups find nothing: a bloom filter answers such a lookup without reading a block.

Their keys are hashes, so in a sorted memtable nearly every key comparison would miss the processor's cache. So their memtables are hash
tables, which the flushing thread sorts. RocksDB hashes the prefix of a key, which here is the complete key (docs/performance.md).
"""
MEMTABLES: Final = 8
"""The memtables that share the write buffer of such a family. They are flushed together: small ones are sorted in the processor's cache."""
MEMTABLE_BYTES_MIN: Final = 64 << 10
"""RocksDB makes no smaller memtable."""
BUCKET_BYTES: Final = 256
"""The memtable's size divided by the number of its hash buckets. In a full memtable two or three rows share a bucket.

RocksDB keeps buckets of more than 256 rows sorted.
"""
_NOT_WRITABLE: Final = (os.strerror(errno.EROFS), os.strerror(errno.EACCES), os.strerror(errno.EPERM))
_NAME_ANOTHER: Final = (
    "Name a folder that this process may write, on a disk that is not read-only, by `[index] directory` (NOTARY_INDEX_DIRECTORY):"
    " docs/runbook.md, 'A folder cannot be written'"
)
UNCACHE: Final = 1_000
"""Once a compaction has replaced a file, nearly all of its blocks are removed from the cache (RocksDB's `uncache_aggressiveness`)."""
FILTERS_PART: Final = 2
"""Once the bloom filters need more than the cache divided by this, new files get partitioned filters.

A lookup then reads one partition of a filter into the cache instead of a complete filter, a megabyte. While all filters are in the cache,
complete ones are faster. A compaction sooner or later replaces the older files.
"""
COUNTED_WRITES: Final = 256
"""The number of writes after which the rows are counted again."""
FILLING_PART: Final = 64
"""While all filters fit into the cache, lookups fill it for `COUNTED_WRITES` writes in so many times this number, the first ones too.

Lookups load the filters of a store that was opened, and filters that the cache dropped. They also load blocks of rows, which are hardly
ever read again: most were read in vain, because of a false positive of a filter (docs/decisions/caches.md).
"""
_PARTITIONED_FILTERS: Final = (
    "{partition_filters=true;index_type=kTwoLevelIndexSearch;metadata_block_size=16384;pin_top_level_index_and_filter=true}"
)
PREFIX_BYTES_MAX: Final = 128
"""The longest prefix that rocksdict can extract; it is longer than any key."""


class IndexSettings(msgspec.Struct, frozen=True):
    """`[index]`: the folder of the workers' indexes, each in a folder with its worker's name; the memory and threads of one index."""

    directory: str = "index"
    cache_bytes: Positive = 256 << 20
    write_buffer_bytes: Positive = 64 << 20
    bloom_bits_per_key: Fixed[int] = 12
    """With 12 bits, a file reads a block in vain for 3 of 1,000 missing keys; with 20 bits, for 1 of 5,000."""
    background_jobs: Fixed[int] = 2


class RocksFamily:
    """A `Family` in RocksDB. rocksdict's own `items` ends silently at a block that cannot be read; this one raises."""

    def __init__(self, store: Rdict, name: str) -> None:
        in_passing = ReadOptions()
        in_passing.fill_cache(False)  # type: ignore[call-arg]  # rocksdict's stub
        self.handle: Any = store.get_column_family(name)
        # A second handle, since rocksdict's `get` ignores the options of one call if it gets a list of keys.
        self.handle_in_passing: Any = store.get_column_family(name)
        self.handle_in_passing.set_read_options(in_passing)
        self.get: Any = self.handle.get
        self.get_in_passing: Any = self.handle_in_passing.get

    def fill_cache(self, fills: bool) -> None:
        """Let the blocks that `get` reads enter the cache, or not."""
        self.get = self.handle.get if fills else self.get_in_passing

    def items(self, *, from_key: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yields all rows from that key on, in the order of the keys."""
        in_order = ReadOptions()
        in_order.set_total_order_seek(True)  # without this, a hash table yields one bucket only
        in_order.fill_cache(False)  # type: ignore[call-arg]  # rocksdict's stub
        found = self.handle.iter(in_order)
        if from_key is None:
            found.seek_to_first()
        else:
            found.seek(from_key)
        while found.valid():
            yield found.key(), found.value()
            found.next()
        found.status()


class RocksStore:
    """A `Store` in RocksDB. When `write` returns, the batch is in RocksDB's write-ahead log, which is not synced."""

    def __init__(self, store: Rdict, settings: IndexSettings) -> None:
        self._store = store
        self.cache_bytes: Final = settings.cache_bytes
        self._bits = settings.bloom_bits_per_key
        self._filters_are_partitioned = False
        self._writes = 0
        self._families = {name: RocksFamily(store, name) for name in FAMILIES}
        # The handles keep the store open, and its lock held, as long as they exist.
        self._handles: dict[str, Any] = {name: store.get_column_family_handle(name) for name in FAMILIES}
        self._count_rows()

    @classmethod
    def open(cls, directory: Path, settings: IndexSettings) -> "RocksStore":
        """Open the store in that directory; create it if it is missing. Raises `ConfigurationError` or `Fatal` with the remedy."""
        with Reading(directory):  # setting an option writes a file, and the disk may be full
            return cls(open_store(directory, settings), settings)

    @property
    def filter_bytes(self) -> int:
        """Bytes that the bloom filters of all rows need, by RocksDB's estimate of the rows; 0 once it is closed."""
        handles = [family.handle for name, family in self._families.items() if name in LOOKED_UP]
        return sum([handle.property_int_value("rocksdb.estimate-num-keys") or 0 for handle in handles]) * self._bits // 8

    def family(self, name: str) -> Family:
        """Returns the rows of a family, for reading."""
        return self._families[name]

    def handle(self, name: str) -> Any:
        """Returns the handle by which a batch names a family."""
        return self._handles[name]

    def new_batch(self) -> WriteBatch:
        """Returns an empty batch."""
        return WriteBatch(raw_mode=True)

    def write(self, batch: WriteBatch) -> None:
        """Write the batch atomically."""
        self._store.write(batch)
        self._writes += 1
        if self._writes % COUNTED_WRITES == 0:
            self._count_rows()

    def flush(self) -> None:
        """Sync the write-ahead log: everything written so far survives a crash of the machine."""
        self._store.flush_wal(True)

    def _count_rows(self) -> None:
        """Give new files partitioned filters if those of all rows need too much of the cache. Choose whether lookups fill the cache."""
        if not self._filters_are_partitioned and self.filter_bytes > self.cache_bytes // FILTERS_PART:
            for name in LOOKED_UP:
                self._families[name].handle.set_options({"block_based_table_factory": _PARTITIONED_FILTERS})
            self._filters_are_partitioned = True
        fills = self._filters_are_partitioned or self._writes // COUNTED_WRITES % FILLING_PART == 0
        for name in LOOKED_UP:
            self._families[name].fill_cache(fills)

    def close(self) -> None:
        """Close the files and release their lock. Memtables are not flushed: the next start reads the write-ahead log.

        Rows that RocksDB cannot write any more, for example on a full disk, are read again from the log (R8).
        """
        families, self._families, self._handles = self._families, {}, {}
        # rocksdict flushes as it closes. With several memtables to a flush, RocksDB forgets such a flush if another one runs, and waits for
        # ever (github.com/facebook/rocksdb/issues/12094, 13280). Once its threads have ended, closing flushes nothing, and raises.
        closings = [self.flush, lambda: self._store.cancel_all_background(True)]
        for family in families.values():
            closings += [family.handle.close, family.handle_in_passing.close]
        for close in (*closings, self._store.close):
            with contextlib.suppress(Exception):  # rocksdict raises bare Exception
                close()


def open_store(directory: Path, settings: IndexSettings, *, read_only: bool = False) -> Rdict:
    """Open RocksDB in that directory; create it if it is missing. Raises `ConfigurationError` or `Fatal` with the remedy."""
    families = _family_options(settings, looked_up=() if read_only else LOOKED_UP)
    try:
        if not read_only:
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigurationError(f"the index {directory} cannot be made: {problem.strerror}. {_NAME_ANOTHER}") from None
    try:
        store = Rdict(
            str(directory),
            options=_database_options(settings),
            column_families=dict(families),
            access_type=AccessType.read_only() if read_only else AccessType.read_write(),
        )
    except Exception as problem:  # rocksdict raises bare Exception for every RocksDB error
        text = str(problem)
        if any(reason in text for reason in _NOT_WRITABLE):
            # Readers need to write too: `viewing` links the files into a folder inside the index.
            raise ConfigurationError(f"the index {directory} cannot be written: {text}. {_NAME_ANOTHER}") from None
        raise_if_out_of_resources(directory, problem)  # for LOCK too
        # Match the file's name: the word "lock" alone is also in "block", which RocksDB uses in errors about corrupt data.
        if text.startswith("IO error") and "/LOCK: " in text:
            raise ConfigurationError(f"the index {directory} is in use by another process: stop it, or give this worker its own") from None
        raise Fatal(
            FatalCode.INDEX_DAMAGED,
            f"the index {directory} does not open: {text}. It is damaged or unreadable: move it away, then restore a snapshot"
            " or let this worker replay the log (docs/runbook.md, 'An index does not open')",
        ) from problem
    if not read_only:
        try:
            for family in LOOKED_UP:
                # rocksdict has no other way to set it.
                store.get_column_family(family).set_options({"uncache_aggressiveness": str(UNCACHE)})
            check_settings(store, directory, settings)
        except Exception:
            store.close()
            raise
    return store


def check_settings(store: Rdict, directory: Path, settings: IndexSettings) -> None:
    """Compare the options in force with the wanted ones. Raises `Fatal`, which names the first that differs."""
    in_force = _options_in_force(directory)
    wanted: dict[tuple[str, str], str] = {
        ("DBOptions", "max_background_jobs"): str(settings.background_jobs),
        ("DBOptions", "allow_concurrent_memtable_write"): "false",
    }
    for family in FAMILIES:
        wanted["CFOptions", family + ".write_buffer_size"] = str(settings.write_buffer_bytes)
    for family in LOOKED_UP:
        wanted["CFOptions", family + ".write_buffer_size"] = str(_memtable_bytes(settings))
        wanted["CFOptions", family + ".min_write_buffer_number_to_merge"] = str(_memtables(settings))
        wanted["CFOptions", family + ".uncache_aggressiveness"] = str(UNCACHE)
        wanted["TableOptions", family + ".filter_policy"] = "bloomfilter"
        wanted["TableOptions", family + ".index_block_restart_interval"] = str(INDEX_RESTART_INTERVAL)
        wanted["CFOptions", family + ".prefix_extractor"] = "max_len"
        wanted["CFOptions", family + ".memtable_whole_key_filtering"] = "true"
        wanted["CFOptions", family + ".memtable_prefix_bloom_size_ratio"] = f"{MEMTABLE_BLOOM_RATIO:.6f}"
    for where, value in wanted.items():
        found = in_force.get(where)
        if found != value:
            raise Fatal(FatalCode.INDEX_SETTINGS_IGNORED, _ignored(directory, where, found, value))
    buckets = f"bucket_count={_buckets(settings)};"
    for family in LOOKED_UP:
        where = ("CFOptions", family + ".memtable_factory")
        found = in_force.get(where, "")
        if "HashLinkListRepFactory" not in found or buckets not in found:
            raise Fatal(FatalCode.INDEX_SETTINGS_IGNORED, _ignored(directory, where, found, buckets))
    for family in FAMILIES:
        capacity = store.get_column_family(family).property_int_value("rocksdb.block-cache-capacity")
        if capacity != settings.cache_bytes:
            raise Fatal(
                FatalCode.INDEX_SETTINGS_IGNORED,
                f"the index {directory} opened {family} with a cache of {capacity} bytes, wanted {settings.cache_bytes}",
            )


def _ignored(directory: Path, where: tuple[str, str], found: str | None, wanted: str) -> str:
    return f"the index {directory} opened with {where[0]} {where[1]} = {found}, wanted {wanted}: this RocksDB ignored it"


def _memtables(settings: IndexSettings) -> int:
    return max(1, min(MEMTABLES, settings.write_buffer_bytes // MEMTABLE_BYTES_MIN))


def _memtable_bytes(settings: IndexSettings) -> int:
    return settings.write_buffer_bytes // _memtables(settings)


def _buckets(settings: IndexSettings) -> int:
    return max(1, _memtable_bytes(settings) // BUCKET_BYTES)


def _database_options(settings: IndexSettings) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_max_background_jobs(settings.background_jobs)
    options.set_max_total_wal_size(4 * settings.write_buffer_bytes)
    options.set_keep_log_file_num(2)
    options.set_allow_concurrent_memtable_write(False)  # hash tables do not support it, and only one thread writes
    # A crash of the machine leaves a torn tail in the write-ahead log. All batches before it are complete, rows and offsets.
    options.set_bytes_per_sync(1 << 20)
    return options


def _family_options(settings: IndexSettings, looked_up: Sequence[str]) -> Mapping[str, Options]:
    """Returns the options of each family. A reader that scans all rows in order, as an export does, needs no `looked_up` families."""
    # RocksDB's LRU cache has up to 64 shards. Two filters in one shard evict each other there (docs/decisions/caches.md).
    cache = Cache.new_hyper_clock_cache(settings.cache_bytes, estimated_entry_charge=0)
    families: dict[str, Options] = {"default": Options(raw_mode=True)}
    for family in FAMILIES:
        table = BlockBasedOptions()
        table.set_block_cache(cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        table.set_format_version(5)
        table.set_index_block_restart_interval(INDEX_RESTART_INTERVAL)
        if family in looked_up:
            table.set_bloom_filter(settings.bloom_bits_per_key, False)
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_size(settings.write_buffer_bytes)
        if family in looked_up:
            memtables = _memtables(settings)
            options.set_write_buffer_size(_memtable_bytes(settings))
            options.set_min_write_buffer_number_to_merge(memtables)
            options.set_max_write_buffer_number(2 * memtables)
            # A bloom filter for rows in the memtable: without it a step of 4-input requests costs a fifth more.
            options.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_RATIO)
            options.set_memtable_whole_key_filtering(True)
            options.set_memtable_factory(MemtableFactory.hash_link_list(_buckets(settings)))  # type: ignore[call-arg]  # rocksdict's stub
            options.set_prefix_extractor(SliceTransform.create_max_len_prefix(PREFIX_BYTES_MAX))
        options.set_level_compaction_dynamic_level_bytes(True)
        # Ids and hashes do not compress. Positions, and states of one transaction, do, but are small.
        options.set_compression_type(DBCompressionType.none())
        families[family] = options
    return families


def _options_in_force(directory: Path) -> dict[tuple[str, str], str]:
    """Parses the OPTIONS file that RocksDB wrote when it opened the store. Returns (section, [family.]name) -> value."""
    files = sorted(directory.glob("OPTIONS-*"), key=lambda path: path.name)
    if not files:
        return {}
    found: dict[tuple[str, str], str] = {}
    section = family = ""
    for line in files[-1].read_text().splitlines():
        if heading := re.fullmatch(r'\[(\w+)(?:/\w+)?(?: "(.*)")?\]', line.strip()):
            section, family = heading[1], heading[2] or ""
        elif "=" in line and not line.startswith("#"):
            name, _, value = line.strip().partition("=")
            found[section, f"{family}.{name}" if family else name] = value
    return found
