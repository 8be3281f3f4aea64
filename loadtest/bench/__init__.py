"""bench: the figures, `make bench`, or `python -P -m loadtest.bench [--only NAME] [--quick | --seconds S] [--out FILE] [--brokers 3]`.

| figure | question | module |
|---|---|---|
| `decode` | how fast is a payload record decoded? | `decode` |
| `apply` | how fast are ordered batches decided and persisted? | `apply` |
| `receipts` | how much do receipts cost? | `receipts` |
| `stages` | which stages use a worker's CPU time under load? | `stages/` |
| `raw` | how fast is the log itself, with nothing decoded or decided? | `raw` |
| `rebuild` | how fast does a worker replay a log into an empty index? | `rebuild` |
| `end-to-end` | how fast are signed submissions answered over HTTP, and how long does one take on an idle system? | `end_to_end` |
| `curve` | how long do answers take, from nearly idle to past the capacity? | `curve` |
| `overload` | how does it behave at several times the capacity? also alone: `python -P -m loadtest.bench.overload` | `overload` |
| `long` | is the ten millionth request as fast as the first? only alone: `python -P -m loadtest.bench.long` | `long` |

| file | subject |
|---|---|
| `program` | the measurements and their order: one parameter varied at a time, and the corners |
| `alone` | a command that measures one figure |
| `facts` | the machine and the versions; CPU seconds and memory of a process |
| `generate`, `ahead` | submissions, payload records and batches from a seed; generated concurrently by another process |
| `load`, `wire` | a closed loop over keep-alive connections; its HTTP |
| `offer`, `offered` | an open loop, whatever the answers; a check of Retry-After |
| `../rig` | starts brokers, workers and loads |
| `report` | JSON lines for programs, read again; a table and a progress bar for people |
| `markdown`, `plot` | tables and diagrams for docs/performance.md (`make bench-plot`) |

Every result is one JSON line: `figure`, `case`, `goal` (our target for it, if there is one), `figures`, `parameters`, `machine`, `time`.
"""
