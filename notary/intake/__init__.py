"""intake: processes of a worker that read and check submissions for it (`[http] intake_processes`, docs/configuration.md).

A worker is one Python interpreter, and with one request a submission most of its time goes into HTTP and signatures. Intake processes do
that beside it: they listen on the service's port together (SO_REUSEPORT shares connections out among them), answer what is wrong with a
submission, and hand over what is good; the worker decides, and its answer goes back the same way. Everything else that is asked is handed
over as it came, so what the service answers is written once, in `notary.http`.

    client -- HTTP --> intake process: head, body, decoding, party, signature
                            | a socket pair, no path on disk
                       worker: room, quota, log, index, receipts

- The worker takes "its signature is good" from nobody but the processes that it started itself, each over a socket of its own.
- Nothing is acknowledged before the worker has its decision, so an intake process that dies loses answers, never submissions (R7); another
  is started in its place. When the worker dies all of them end at once.
- While the worker takes nothing in it tells them so, and they refuse without reading: its own time is for what it has taken in.

| file | subject |
|---|---|
| `messages` | what the two say to each other |
| `link` | one end of the socket between them |
| `front` | the application of an intake process |
| `__main__` | an intake process |
| `intake` | the worker's side: starting them, starting them again, ending them |
"""

from notary.intake.intake import Intake

__all__ = ["Intake"]
