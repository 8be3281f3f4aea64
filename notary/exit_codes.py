"""The exit codes of `notary ...`, for its commands and for a worker that runs one as a process.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | success with a negative result: a rejection under `submit --fail-on-rejection`, an invalid proof, an unsound snapshot |
| 2 | failure: bad usage or configuration, no worker that answers, output that cannot be written, a bug |
"""

EXIT_DONE, EXIT_NO, EXIT_COULD_NOT = 0, 1, 2
