"""acceptor: processes of a worker that read and check submissions for it (`[http] acceptor_processes`, docs/configuration.md).

A worker is one Python interpreter. If submissions have one request each, most of its time goes into HTTP and signatures. Acceptor processes
take over that work. They share the service's port (SO_REUSEPORT distributes connections among them), answer invalid submissions, and hand
valid ones to the worker. The worker decides, and its answer returns on the same path. Every other call is handed over unchanged, so the
code that answers it exists once, in `notary.http`.

    client -- HTTP --> acceptor process: head, body, decoding, party, signature
                            | a socket pair, no path on disk
                       worker: capacity, quota, log, index, receipts

- The worker trusts the signature check only of processes that it started itself, each over a socket of its own.
- Nothing is acknowledged before the worker has its decision. So an acceptor process that dies loses answers, never submissions (R7), and
  the worker starts another one. It kills one that answers no pings. When the worker dies, all its acceptor processes end at once.
- When the worker stops admitting, it notifies them, and they reject submissions unread. So the worker's time is left for admitted ones.

| file | subject |
|---|---|
| `messages` | the messages between the two |
| `link` | one end of the socket between them |
| `app` | the application of an acceptor process |
| `__main__` | an acceptor process |
| `pool` | the worker's side: starts, restarts and ends acceptor processes |
"""

from notary.acceptor.pool import AcceptorPool

__all__ = ["AcceptorPool"]
