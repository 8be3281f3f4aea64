"""spark_join: the second opinion. It reads the log, decides everything again, and compares.

The promise: nothing here is imported from the rooms that it checks, so a mistake of theirs is not repeated. Formats and rules are read from
docs/formats.md and docs/rules.md a second time. And it is another way of computing: not record by record, but a whole log at once, in Spark
DataFrames, on as many machines as there are.

The way of a log through it:

| file | what it makes |
|---|---|
| `archive` | the records of both topics |
| `state`, `kept` | what an earlier run knew of the log before them, and its files |
| `ordering_records` | typed columns of the ordering topic |
| `order` | the entries that count, lives, log time (R2, R5, R6) |
| `contents`, `payloads`, `signatures` | each entry's content (R3): requests, their ids, whose signature is bad |
| `positions` | first occurrences (R7), 0, 1, 2, … |
| `decide`, `rounds` | outcome, reason and conflicts of each |
| `tree` | leaves, and roots at any sizes |
| `join`, `verify`, `report` | the first half and the whole of it in their order; what is written of it |
| `carry` | the state at the end, for the next run |
| `stages`, `session`, `java` | files between the stages; the Spark session, and a Java for it |
| `octets`, `running`, `digests` | numbers in binary columns; aggregates of all that came before; the SHA-256 of files |
| `constants`, `errors` | what formats.md fixes; `CouldNotVerify` |

`python -m spark_join verify --help` says what it can be told.
"""
