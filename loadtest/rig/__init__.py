"""rig: the base of all loads and benchmarks. It starts the systems under test and the loads, and stops them; nothing is left behind.

The command lines above it (`bench`, `openloop`, `peers`) share these parts, and have no second version of any of them:

| file | subject | pure |
|---|---|---|
| `notaries` | a notary as its users start it, on brokers or on an embedded log; a load as a process of its own | no |
| `signing` | requests and submissions to the byte, from the contract alone | yes |
| `generate` | submissions from a seed, also ahead by another process | no |
| `schedule` | the intended start of each submission of an open loop | yes |
| `connections` | keep-alive HTTP on asyncio, as small as this service permits; clients that check Retry-After | no |
| `closed_loop` | the closed loop: a connection sends its next submission after the last answer | no |
| `open_loop` | the open loop: submissions are sent when they are due; a load at more than the capacity | no |
| `arguments` | types of command-line arguments | yes |
| `latencies` | latencies in HdrHistograms; errors, counted | yes |
| `machine` | the machine of a measurement; environment, CPU time and memory of its processes and of others | no |
| `progress` | lines of progress, and a bar | no |
"""
