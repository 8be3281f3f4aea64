"""loadtest: performance measurements that anybody can repeat in the same way.

The promise: one command (`make bench`, or `python -P -m loadtest.bench`) starts the system under test, measures it, records the machine,
and leaves nothing behind. Every figure comes with the figure of the raw path from the same run: the same bytes appended and read back, with
nothing decoded or decided. A figure alone shows more about the machine than about this software.

The conditions of every figure:

- Clients, brokers and the worker share the machine. The CPU time of the load itself is measured and reported, not subtracted.
- There is one closed loop and one schedule of open loops (`rig/`). In a closed loop a connection sends its next submission after the
  last answer, and latency is from the first byte out to the last byte in. In an open loop (`curve`, `overload`, `make load`) submissions
  are sent at their intended times, and latency counts from those.
- Every answer is checked: status 200, every decision committed, the ids requested, in their order. A wrong answer fails the run, whatever
  its speed.
- The first part of a load is warm-up and does not count: a fifth of a closed loop, three tenths of an open one.
- Load is generated from a seed: the same seed, the same bytes, signatures included (Ed25519 has no randomness).

| package | subject |
|---|---|
| `rig/` | below all others: brokers, workers and loads as processes; requests, the two loops, latencies, the machine |
| `bench/` | the figures: from decoding alone to ten million requests end to end, and the CPU time of each stage |
| `openloop/`, `locustfile.py` | `make load`, for Locust users: requests are sent at their intended times, not when answers arrive |
| `peers/` | PostgreSQL, etcd and the single-topic design at the same work, in the same run |

Nothing here asserts a time: machines differ, and only ratios within one run are comparable. Figures are published only from runs in which
other processes took less than 2 % of the machine.
"""
