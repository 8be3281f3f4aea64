"""stages: what of a worker's CPU time each part of its work takes, in a real worker under a real load; all of it, to the end.

A sampler runs inside the worker (`inside/sitecustomize.py` brings it in by PYTHONPATH, into each process that the worker starts too): after
every few milliseconds of CPU time a signal has the main thread look where it is, and the CPU time since the last look goes to that place.

    CPU time of the process, by the kernel's clock
      = main thread           each part to the stage whose code it was in (`places`), the garbage collector and the sampler apart
      + threads of Python     by their names: "verify", the embedded log's
      + the rest              threads that know no Python: RocksDB's, which flush and compact

So the sum is what the process spent, by construction; what is sampled is only how the main thread's time is shared out. Looks happen where
the interpreter looks for signals: after a call that took long in C code it is still the caller's frame, so C code counts for who called it.
What the event loop does between two callbacks shows as the very first instruction of the next one, and counts for the loop: polling,
and the reading of sockets.

| file | subject |
|---|---|
| `places` | which code is which stage |
| `sampler` | the part inside the worker |
| `measure` | the figure `stages`: the load, the sums, cores for 10,000 requests a second |
"""
