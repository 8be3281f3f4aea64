"""bench: the figures, `make bench`, or `python -P -m loadtest.bench [--only NAME] [--quick | --seconds S] [--out FILE] [--brokers 3]`.

| figure | question | module |
|---|---|---|
| `decode` | how fast is a payload record decoded? | `decode` |
| `apply` | how fast are ordered batches decided and kept? | `apply` |
| `receipts` | what do receipts cost? | `receipts` |
| `stages` | what CPU time does a worker under load spend on what? | `stages/` |
| `raw` | what can the log itself do, with nothing decoded or decided? | `raw` |
| `rebuild` | how fast does a worker replay a log into an empty index? | `rebuild` |
| `end-to-end` | how fast are signed submissions answered over HTTP, and how long does one take on an idle system? | `end_to_end` |
| `curve` | how long do answers take, from nearly idle to past the capacity? | `curve` |
| `overload` | what happens at several times the capacity? also alone: `python -P -m loadtest.bench.overload` | `overload` |
| `long` | is the ten millionth request as quick as the first? only alone: `python -P -m loadtest.bench.long` | `long` |

| file | subject |
|---|---|
| `program` | what is measured, in which order: one thing varied at a time, and the corners |
| `alone` | a command that measures one figure |
| `facts` | the machine and the versions; CPU seconds and memory of a process |
| `generate`, `ahead` | submissions, payload records and batches from a seed; made in another process meanwhile |
| `load`, `wire` | a closed loop over keep-alive connections; the HTTP of it |
| `offer`, `offered`, `probe` | an open loop, whatever the answers do; whether Retry-After is true |
| `process` | a load in its own process |
| `place`, `service` | a notary as its users run it: `notary init`, `party add`, `serve`, on brokers or an embedded log |
| `bar` | how far it is |
| `report` | JSON lines for programs, a table for people |
| `lines`, `markdown`, `plot` | the lines read again: tables and pictures for docs/performance.md (`make bench-plot`) |

Every result is one JSON line: `figure`, `case`, `goal` (what we want of it, where we said so), `figures`, `parameters`,
`machine`, `time`.
"""
