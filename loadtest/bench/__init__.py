"""bench: the figures, `make bench`, or `python -P -m loadtest.bench [--only NAME] [--quick | --seconds S] [--out FILE] [--brokers 3]`.

| file | subject |
|---|---|
| `figures/` | the figures, each with its measurement, its tables and its picture (`python -P -m loadtest.bench --help`) |
| `figures/long`, `overload`, `fairness`, `rebuild` | also commands of their own: `python -P -m loadtest.bench.figures.long` |
| `figure` | the parts of a figure, and the helpers that figures share |
| `loads` | the closed loop and the open loop of one case, as processes of their own |
| `report` | results as JSON lines, and a table for people |
| `page` | the tables and pictures of docs/performance.md (`make bench-plot`), from a quiet machine only |
| `stage_map`, `sampler` | CPU time by stage, inside a worker |
| `spark` | a command of its own: the time that Spark needs to verify a log |

Every result is one JSON line: `figure`, `case`, `goal` (its target, if it has one), `figures`, `parameters`, `machine`, `time` and
`others_share`, the share of the machine that other processes took during the measurement.
"""
