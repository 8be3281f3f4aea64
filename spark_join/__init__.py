"""spark_join: the independent verifier. It reads the log, decides everything again, and compares.

The promise: nothing here is imported from the packages that it checks, so a mistake of theirs is not repeated. Formats and rules are read
from docs/formats.md and docs/rules.md a second time. And it computes in another way: a whole log at once, in Spark DataFrames, on as many
machines as there are. Only which ordering records take effect, and the history over them, is found record by record (`order/effects`).

The way of a log through it:

| room | what it makes |
|---|---|
| `log/` | the records of both topics, read from brokers or an archive; into an archive; and back into a cluster |
| `order/` | whose log it is and who signed (R10), what takes effect (R2, R5, R6), contents (R3), positions (R7), gaps |
| `join` | all of that in its order: from the log to the requests |
| `decisions/` | outcome, reason and conflicts of each request; leaves, roots at any sizes, and every checkpoint against its root |
| `exports/` | exported indexes against the decisions, row by row |
| `state/` | what an earlier run knew of the log, and what this one leaves to the next |
| `verify` | all of it: state in, log, state out |
| `commands/` | the command line: `verify`, `archive`, `restore` |
| `report/` | what is written of it: `report.json`, `report.html`, `violations/` |
| `engine/` | the session and a Java for it, files between the stages, their hashes, progress, what DataFrames lack |
| `violations` | one row for each thing that is wrong |
| `constants`, `errors`, `exit_codes` | what formats.md fixes; `CouldNotVerify`; what a process ends with |

`python -P -m spark_join verify --help` lists its arguments; `archive` and `restore` are the other commands.
"""
