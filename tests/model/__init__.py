"""A random model of salvage, failover, failback and trim (docs/salvage.md, R11), on a small model of the log of R1 to R10. Pure Python.

Read it like this: `log.py` has the records and the topics, `reader.py` what a worker makes of them, `plan.py` the choice of what is put
back, `owner.py` the commands of the operator, `random_history.py` the random histories with their disasters, `checks.py` the properties.
`real.py` gives its logs to the real reader and to an independent replay. `faults.py` lists rules that can be broken, one at a time.
"""
