"""index: one worker's RocksDB store (R8): consumed states, decisions, and how far it has read.

The log is the truth; the index is what one worker made of it. It is written by one write batch a step, which holds the step's rows *and*
the offsets to read again from, so they are kept or lost together. It need not fsync: what a machine's crash takes off its end is read
again from the log. What it must never do is run ahead of its log, or belong to another: it refuses to open then.

| column family | key | value |
|---|---|---|
| `states` | 36-byte state | transaction id that consumed it, u64 position |
| `decisions` | transaction id | u64 position, i64 log time, u8 outcome, conflicts |
| `positions` | u64 position | transaction id |
| `tiles` | u8 level, u64 tile index | the tree's tiles, partial ones as far as they go (`notary.tree`) |
| `meta` | see `rows` | format version, notary name, log identity, offsets, log time, lives |

| file | subject |
|---|---|
| `rows` | the rows of `states`, `positions` and `meta`, to the byte (pure) |
| `store` | what the index asks of a disk, as an interface |
| `rocks` | `RocksStore`: that disk in RocksDB; its options, and their reading back |
| `tiles` | `StoredTree`: the tree of the decisions, read from and written to tiles |
| `index` | `Index`: apply a step, answer a question |
| `view` | `viewing`: all rows as of one moment, beside the worker that writes them |
"""

from notary.index.index import ROW_US, TILE_US, Consumed, Index
from notary.index.rocks import IndexSettings
from notary.index.store import INDEX_FORMAT_VERSION
from notary.index.view import IndexView, viewing

__all__ = ["INDEX_FORMAT_VERSION", "ROW_US", "TILE_US", "Consumed", "Index", "IndexSettings", "IndexView", "viewing"]
