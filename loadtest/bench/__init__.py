"""bench: the figures, `python -m loadtest.bench [--only NAME] [--quick] [--out bench.jsonl] [--brokers 3]`.

| figure | question | module |
|---|---|---|
| `decode` | how fast is a payload record decoded? | `decode` |
| `apply` | how fast are ordered batches decided and kept? | `apply` |
| `stages` | what CPU time does a worker under load spend on what? | `stages/` |
| `raw` | what can the log itself do, with nothing decoded or decided? | `raw` |
| `rebuild` | how fast does a worker replay a log into an empty index? | `rebuild` |
| `end-to-end` | how fast are signed submissions answered over HTTP, and how long does one take on an idle system? | `end_to_end` |

| file | subject |
|---|---|
| `facts` | the machine and the versions; CPU seconds of a process |
| `generate` | submissions, payload records and batches from a seed |
| `load`, `wire` | the load, in its own process: a closed loop over keep-alive connections; the HTTP of it |
| `service` | a notary as its users run it: `notary init`, `party add`, `serve` |
| `report` | JSON lines for programs, a table for people |

Every result is one JSON line: `figure`, `case`, `goal` (what we want of it, where we said so), `figures`, `parameters`,
`machine`, `time`.
"""
