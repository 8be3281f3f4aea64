"""index: one worker's RocksDB store (R8): consumed states, decisions, and how far it has read.

The log is the truth; the index is one worker's materialized view of it. Each step is one write batch: the step's rows *and* the offsets to
resume reading at, so they are kept or lost together. The index need not fsync: steps that a crash of the machine loses are read again from
the log. The index does not open if it is ahead of its log, or belongs to another log.

| column family | key | value |
|---|---|---|
| `states` | 36-byte state | transaction id of its consumer, u64 position; for a reserved state (R11) the hash of that id, 2^64 - 1 |
| `decisions` | transaction id | u64 position, i64 log time, u8 outcome, conflicts |
| `positions` | u64 position | transaction id; or, after a salvage, 1 and the leaf's hash, or 2 for a lost leaf |
| `tiles` | u8 level, u64 tile index | the tree's tiles; a partial tile has its present hashes (`notary.tree`) |
| `meta` | see `rows` | format version, notary name, log identity, offsets, log time, incarnations |

| file | subject |
|---|---|
| `rows` | the rows of `states`, `positions` and `meta`, to the byte (pure) |
| `meta` | the rows of `meta` in an open store: the owner, the offsets, the joiner's state, the comparison of roots |
| `store` | `Store`: the storage interface that the index needs |
| `rocks` | `RocksStore`: that interface on RocksDB; sets the options and reads them back |
| `tiles` | `StoredTree`: the tree of the decisions, read from and written to tiles |
| `index` | `Index`: applies a step, answers queries |
| `scrub` | reads every row once, to find corrupt blocks early |
| `view` | `viewing`: a snapshot of all rows, taken while the worker goes on writing |
"""

from notary.index.index import ROW_US, TILE_US, Consumed, Index
from notary.index.rocks import IndexSettings
from notary.index.store import INDEX_FORMAT_VERSION
from notary.index.view import CURRENT, IndexView, check_is_index, link_files, viewing

__all__ = [
    "CURRENT",
    "INDEX_FORMAT_VERSION",
    "ROW_US",
    "TILE_US",
    "Consumed",
    "Index",
    "IndexSettings",
    "IndexView",
    "check_is_index",
    "link_files",
    "viewing",
]
