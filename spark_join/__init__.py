"""spark_join: the independent verifier. It reads the log, decides every request again, and compares.

This package imports nothing from the packages that it checks, so it does not repeat their mistakes. Formats and rules are read a second
time, from docs/formats.md and docs/rules.md. It also computes in another way: the complete log at once, in Spark DataFrames, on any number
of machines. Only `order/effects` goes record by record: it finds the ordering records that take effect, and the history over them.

A log passes through these packages and modules:

| package or module | contents |
|---|---|
| `log/` | reads the records of both topics from brokers or an archive; archives them; restores them into a cluster |
| `order/` | the log's identity and signatures (R10), records in effect (R2, R5, R6), contents (R3), positions (R7), gaps |
| `join` | runs `order/` step by step, from the log to the requests |
| `decisions/` | outcome, reason and conflicts of each request; leaves, roots at any size, each checkpoint compared with its root |
| `exports/` | compares exported indexes with the decisions, row by row |
| `state/` | the state that an earlier run kept, and the state that this run keeps for the next |
| `verify` | the complete verification: reads a state and a log, returns the violations and the next state |
| `commands/` | the command line: `verify`, `archive`, `restore` |
| `report/` | writes the result: `report.json`, `report.html`, `violations/` |
| `engine/` | the Spark session and its Java, files between stages and their hashes, progress, functions that DataFrames lack |
| `violations` | one row for each violation |
| `constants`, `errors`, `exit_codes` | numbers that formats.md fixes; `CouldNotVerify`; exit codes of the process |

`python -P -m spark_join verify --help` lists its arguments; `archive` and `restore` are the other commands.
"""
