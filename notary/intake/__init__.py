"""intake: processes of a worker that read and check submissions for it (`[http] intake_processes`, docs/configuration.md).

A worker is one Python interpreter, and with one request a submission most of its time goes into HTTP and signatures. Intake processes take
that work. They listen on the service's port together (SO_REUSEPORT distributes connections among them), answer wrong submissions, and hand
good ones to the worker; the worker decides, and its answer takes the same way back. They hand over every other call unchanged, so the code
that answers it exists once, in `notary.http`.

    client -- HTTP --> intake process: head, body, decoding, party, signature
                            | a socket pair, no path on disk
                       worker: room, quota, log, index, receipts

- The worker accepts "its signature is good" only from the processes that it started itself, each over a socket of its own.
- Nothing is acknowledged before the worker has its decision. So an intake process that dies loses answers, never submissions (R7); the
  worker starts another in its place. When the worker dies all of them end at once.
- While the worker admits nothing it notifies them, and they reject submissions without reading them: the worker's time is for the admitted
  ones.

| file | subject |
|---|---|
| `messages` | the messages between the two |
| `link` | one end of the socket between them |
| `front` | the application of an intake process |
| `__main__` | an intake process |
| `intake` | the worker's side: starting them, starting them again, ending them |
"""

from notary.intake.intake import Intake

__all__ = ["Intake"]
