"""openloop: an open-loop load for Locust users, without coordinated omission.

    locust -f loadtest/locustfile.py --headless --host http://127.0.0.1:8080 --rate 2000 --run-time 60s
    make load RATE=2000 DURATION=60     with brokers and workers of its own

All else is as in Locust (docs/load.md).

Most loads wait for an answer before they send the next request. When the server is slow, they send less, and measure only its best times.
Here each request is sent at its intended time, as in production, even if the last one has no answer:

- Every submission has an intended start, by a schedule that is fixed before the run. Latency counts from it. A free user takes the next
  submission; when all users wait for answers, the next ones are sent late, and their latency includes that.
- A submission without a complete answer `--deadline` seconds after its intended start has failed, also when it could not even be sent by
  then.
- A 202, a 429, a 503, a proxy's 502 or 504, or a broken connection is no answer. The same bytes are sent again, after `Retry-After`, to
  the next URL of `--host`. Retries are counted, and their time is latency. Any other status is a failure.
- A figure is reported only for a complete run: every submission of the schedule answered, and no violation found (`checker`). Otherwise the
  exit code is 1, and a line that begins with NO FIGURE gives the reason.
- Rates count requests, that is transactions. Locust counts HTTP calls: its "POST submissions" are those, and rows "in them transactions"
  are next to them. With one request per submission both are the same.

| file | subject | pure |
|---|---|---|
| `plan` | the parameters of a run and of one process in it; the options in addition to Locust's | yes |
| `generate` | the requests of a process, from a seed, with the possible outcomes of each | yes |
| `checker` | the answers of a notary, decoded strictly and checked; the positions seen by all processes | yes |
| `tally` | counts and times; the figure, or the reasons why there is none | yes |
| `process` | one process's part: generating, sending, retrying; a child of a Locust process | no |
| `run` | the Locust processes, their children and their coordinator, over Locust's messages | Locust |
| `../locustfile.py` | the wiring: user, shape, events | Locust |
| `__main__` | `make load`: brokers, workers, Locust, in one command | no |

The loop, its schedule, its connections and its histograms are those of every open loop (`rig`). Locust has the command line, the web form,
the tables and the processes. Its users wait while a child sends, and the child has a connection to each URL for each of them. Locust
patches the standard library of its own process, so asyncio does not work there, and nothing but `locust` itself imports `run` and the
wiring.
"""
