"""ordering: the lowest package. It defines transaction ids, the ordering records and the log with its guarantees.

The log has two halves: the *ordering* topic, a single partition of transaction ids that gives everything its order, and the *payload*
topic, many partitions that carry the complete requests. This package owns the vocabulary of all other packages, and the log itself.
The contract of the log is `ordering.log`. Each backend has a class that implements it:

- `KafkaLog`: topics of a Kafka cluster, replicated; production runs on it;
- `EmbeddedLog`: a RocksDB store in one process, fsynced before it acknowledges; the default to start with;
- `MemoryLog`: keeps nothing after the process ends; for simulations and tests.

| file | subject | pure |
|---|---|---|
| `errors` | the errors, distinguished by what a caller may conclude | yes |
| `ids` | transaction ids and state references | yes |
| `records` | the ordering records, to the byte | yes |
| `salvage` | the items of a salvage, to the byte | yes |
| `signatures` | signatures over records, fills, seals and new keys | yes |
| `genesis` | appending the genesis record, and reading which notary owns a log | no |
| `log` | the interface and its durability contract | yes |
| `settings` | ranges of settings, and the settings of the log | yes |
| `clock` | the wall clock | no |
| `pieces` | work in pieces, so that an event loop can do other work in between | yes |
| `durable` | files that survive a crash of the machine, and locks between processes | no |
| `memory` | `MemoryLog` | no |
| `embedded`, `store` | `EmbeddedLog`, and its RocksDB rows and options | no |
| `torn` | distinguishes a write that a crash interrupted from other damage | no |
| `local_reader` | the parts that both local logs share, among them the reader | no |
| `kafka` | `KafkaLog`: writer, reader, log start and log end offsets | no |
| `batches` | record batches before the client decodes them: without headers | no |
| `interruptions` | detects that a Kafka reader may be reading a different log than before | no |
| `leadership` | partition leaders, learnt from Metadata in bounded time | no |
| `connection`, `endings` | connecting to brokers, and disconnecting in bounded time | no |
| `topics` | creating and checking Kafka topics, apart from using them | no |

Nothing here knows the content of a transaction or how it is decided.
"""
