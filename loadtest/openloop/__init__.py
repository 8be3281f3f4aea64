"""openloop: a load for Locust users, that hides nothing.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8080 --rate 2000 --run-time 60s     the web UI, and all else as Locust has it
    make load RATE=2000 DURATION=60                                                              with brokers and workers of its own

Most loads wait for an answer before they ask again. When the server is slow, they ask less, and what they measure is the server's best
side. Here requests arrive as they do in the world, when they are due, and do not care how the last one fared:

- Every submission has an intended start, by a schedule that is there before the run. Latency counts from it. A user that is free takes
  the next one that nobody took; when all users wait for answers, the next ones leave late, and that is in their latency.
- One that has no whole answer `--deadline` seconds after its intended start has failed. One that could not even be sent by then, too.
- What is asked is made and signed before the start, from a seed, each process its own share: making never competes with the run.
- A 202, a 429, a 503 or a broken connection is no answer: the same bytes are sent again, after `Retry-After`, to the next of the URLs of
  `--host`. That is counted, and its time is latency.
- Every answer is checked (`checker`, `ledger`). What should not be makes the run fail, at any speed.
- A figure is told only of a run that was whole: every submission of the schedule answered, and nothing wrong. Else the exit code is 1, and
  a line that begins with NO FIGURE says why; the tables that Locust prints then are what it saw, not what the notary does.
- Rates count requests, that is transactions. Locust counts HTTP calls: its "POST submissions" are those, and rows "in them transactions"
  stand beside them. With one request a submission both are the same.

| file | subject | pure |
|---|---|---|
| `schedule` | stages of one rate, and the intended starts | yes |
| `plan` | what one process has to know | yes |
| `generate` | what it asks, from a seed; and what could happen to each request | yes |
| `pool` | what was made, in a file | no |
| `answers` | what a notary says, read strictly | yes |
| `checker` | one process's check of it | yes |
| `ledger` | the positions of all processes: dense, one transaction each, log time never falls | yes |
| `tally` | counts and times, of one process or all | yes |
| `verdict` | whether there is a figure, and which | yes |
| `options` | the options on top of Locust's | yes |
| `connection` | keep-alive HTTP on geventhttpclient | gevent |
| `process` | one process's part: making, pacing, retrying | gevent |
| `member`, `coordinator` | processes and the one that runs them, over Locust's messages | Locust |
| `../locustfile.py` | the wiring: user, shape, events | Locust |
| `__main__` | `make load`: brokers, workers, Locust, in one command | no |

Locust patches the standard library of its process; so nothing but `locust` itself imports the last of these.
"""
