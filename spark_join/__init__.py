"""spark_join: the independent verifier. It reads the log, decides every request again, and compares.

This package imports nothing from the packages that it checks, so it does not repeat their mistakes. It implements formats and rules a
second time, from docs/formats.md and docs/rules.md. It also computes in another way: the complete log at once, in Spark DataFrames, on any
number of machines. Only `order/effects` goes record by record: it finds the ordering records that take effect, and their history.

A log passes through these packages and modules:

| package or module | contents |
|---|---|
| `log/` | reads the records of both topics from brokers or an archive; restores them into a cluster |
| `archiving` | adds the records of both topics to an archive |
| `identity` | the log's identity, its keys and their signatures (R10) |
| `order/` | the join: from the log to the requests in the global order |
| `decisions` | outcome, reason and conflicts of each request |
| `tree` | leaves, roots at any size, each checkpoint compared with its root |
| `exports/` | reads exported indexes, and compares them with the decisions, row by row |
| `verify` | the complete verification: from a state and a log to the violations and the next state |
| `state`, `kept_state` | the state from which a later run continues, and its files |
| `report/` | writes the result: `report.json`, `report.html`, `violations/` |
| `commands`, `arguments` | the command line: `verify`, `archive`, `nightly`, `restore` |
| `engine/` | the Spark session, its stages and their progress, durable files, functions that DataFrames lack |
| `violations` | one row for each violation |
| `constants`, `errors` | numbers that formats.md fixes; `CouldNotVerify` and the exit codes of the process |

`python -P -m spark_join verify --help` lists its arguments; `archive`, `nightly` and `restore` are the other commands.
"""
