"""loadtest: how fast it is, measured the same way by everybody.

The promise: one command (`make bench`, or `python -P -m loadtest.bench`) starts what it measures, measures it, says on what
machine, and leaves nothing behind. Every figure stands beside the raw path of the same run (the same bytes appended and
read back with nothing decoded or decided), because a figure alone says more about the machine than about this software.

What is in a figure, and what is not:

- Clients, brokers and the worker share the machine. What the load itself costs is measured and told, not taken off.
- Loads of `bench/` are closed loops, but for `curve` and `overload`: a connection sends its next submission when it has the answer to the
  last. Latency is from the first byte out to the last byte in; of an open loop, from when a submission was due.
- Every answer is checked: status 200, every decision committed, the ids those that were asked, in their order. One that
  is not makes the run fail, whatever its speed.
- The first fifth of a run is warming up and does not count.
- Load is made from a seed: the same seed, the same bytes, signatures included (Ed25519 has no randomness).

| place | subject |
|---|---|
| `bench/` | the figures: from decoding alone to ten million requests end to end, and what the time goes into |
| `openloop/`, `locustfile.py` | `make load`, for Locust users: requests arrive when they are due, whatever the answers do |
| `signing` | requests and submissions to the byte, for all of them |
| `peers/` | PostgreSQL, etcd and the single-topic design at the same work, in the same run |

Nothing here asserts a time: machines differ, and ratios within one run are what hold.
"""
