"""stages: the CPU time of a worker by stage of its work, in a real worker under a real load; complete, to the end.

A sampler runs inside the worker (`inside/sitecustomize.py` starts it through PYTHONPATH, also in each process that the worker starts).
After every few milliseconds of CPU time a signal makes the main thread sample its stack. The CPU time since the last sample is added to the
stage found there.

    CPU time of the process, by the kernel's clock
      = main thread           by the stage of the code that runs (`places`), with the garbage collector and the sampler separate
      + threads of Python     by their names: "verify", the embedded log's
      + the rest              threads without Python: RocksDB's, which flush and compact

So the sum is the CPU time of the process, by construction; only the division of the main thread's time is sampled. Samples are taken where
the interpreter checks for signals: after a long call of C code that is still the caller's frame, so C code counts for its caller. The event
loop's work between two callbacks appears as the very first instruction of the next one, and counts for the loop: polling, and the reading
of sockets.

| file | subject |
|---|---|
| `places` | the stage of each piece of code |
| `sampler` | the part inside the worker |
| `measure` | the figure `stages`: the load, the sums, cores for 10,000 requests a second |
"""
