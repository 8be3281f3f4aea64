"""ordering: the ground floor. What a transaction id is, what an ordering record says, and what a log promises.

The log has two halves: the *ordering* topic, a single partition of transaction ids that gives everything its order, and the *payload*
topic, many partitions that carry the whole requests. This room owns the vocabulary that all others share, and the log itself, in three
forms with one contract (`ordering.log`):

- `KafkaLog`: topics of a Kafka cluster; replicated, what production runs on;
- `EmbeddedLog`: a RocksDB store in one process, fsynced before it acknowledges; the default to start with;
- `MemoryLog`: nothing survives; for simulations and tests.

| file | subject | pure |
|---|---|---|
| `errors` | what a caller may conclude when something fails | yes |
| `ids` | transaction ids and state references | yes |
| `records` | the ordering records, to the byte | yes |
| `signatures` | who has signed a record, a fill, a new key | yes |
| `genesis` | making a log somebody's, and reading whose it is | no |
| `log` | the interface and its durability contract | yes |
| `clock` | the wall clock | no |
| `memory` | `MemoryLog` | no |
| `embedded`, `store` | `EmbeddedLog`, and the RocksDB rows and options it keeps them in | no |
| `torn` | whether damage is only a write that a crash cut short | no |
| `stream` | the reader that both local logs share | no |
| `kafka` | `KafkaLog`: writer, reader, bounds | no |
| `interruptions` | when a Kafka reader may be reading another log than before | no |
| `connection`, `endings` | getting to brokers, and leaving them in bounded time | no |
| `topics` | creating and checking Kafka topics, apart from using them | no |

Nothing here knows what a transaction says or how it is decided.
"""
