"""http: the service (docs/http.md).

No framework and no task stands between a body and its decision: the parser's events drive `connection`, which calls `app`, which calls
the gate (`notary.gate`) and the joiner's sender; answers come back by call-backs. Read these four from top to bottom. Every answer that is
not a result is a problem (RFC 9457) with one of the names in `problems`; nothing that a client sends makes a 5xx other than `overloaded`
and `not-ready`.

| file | subject |
|---|---|
| `server` | one port: taking connections in, their number and deadlines, the graceful end |
| `connection` | one connection: what each event does |
| `machine` | its states, events, transitions and times |
| `settings` | addresses, limits and times (`[http]`) |
| `parsing` | bytes -> calls, and the limits of what is no body |
| `writing` | answers -> bytes, and clients that do not read them |
| `call` | a call and its answer, as connections, applications and intake processes see them |
| `app` | routes: where each call goes |
| `submission` | the calls that hand in a submission, to a worker and to its intake processes alike |
| `in_flight` | a submission from the gate to its answer |
| `awaited` | the transactions whose decision a long poll waits for |
| `reads` | a call that only reads: at once, in pieces, or as a long poll |
| `readers` | who may read, where reads are kept for parties |
| `lookups`, `query`, `health` | what such calls return |
| `turns` | work in pieces, in turns of the event loop |
| `lifecycle` | the worker that an application serves, the calls under way, and the way of every answer |
| `problems` | errors -> problem documents |
| `openapi` | the OpenAPI 3.1 document |
"""

from notary.http.app import App
from notary.http.server import Server, bind
from notary.http.settings import HttpSettings, parse_listen

__all__ = ["App", "HttpSettings", "Server", "bind", "parse_listen"]
