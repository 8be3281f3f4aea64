"""index: one worker's RocksDB store (R8): consumed states, decisions, and how far it has read.

The log is the truth; the index is one worker's materialized view of it. Each step is one write batch: the step's rows *and* the offsets to
read again from, so they are kept or lost together. The index need not fsync: the worker reads again from the log what a machine's crash
cut off. The index must never be ahead of its log, nor belong to another log: it refuses to open then.

| column family | key | value |
|---|---|---|
| `states` | 36-byte state | transaction id that consumed it, u64 position |
| `decisions` | transaction id | u64 position, i64 log time, u8 outcome, conflicts |
| `positions` | u64 position | transaction id |
| `tiles` | u8 level, u64 tile index | the tree's tiles, partial ones as far as they go (`notary.tree`) |
| `meta` | see `rows` | format version, notary name, log identity, offsets, log time, incarnations |

| file | subject |
|---|---|
| `rows` | the rows of `states`, `positions` and `meta`, to the byte (pure) |
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
from notary.index.view import CURRENT, IndexView, link_files, viewing

__all__ = [
    "CURRENT",
    "INDEX_FORMAT_VERSION",
    "ROW_US",
    "TILE_US",
    "Consumed",
    "Index",
    "IndexSettings",
    "IndexView",
    "link_files",
    "viewing",
]
