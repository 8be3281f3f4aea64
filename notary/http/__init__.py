"""http: the service (docs/http.md).

A plain ASGI application on uvicorn: no framework stands between a body and its decision. Every answer that is not a result is a problem
(RFC 9457) with one of the names in `problems`; nothing that a client sends makes a 5xx other than `overloaded` and `not-ready`.

| file | subject |
|---|---|
| `app` | routes, and what each call answers |
| `submission` | how a submission comes, to a worker and to its intake processes alike |
| `body` | reading bodies: each within size and time, all within memory |
| `problems` | errors -> problem documents |
| `openapi` | the OpenAPI 3.1 document |
| `server` | uvicorn with patience limits; ports, start and graceful end |
"""

from notary.http.app import App
from notary.http.server import Server, bind

__all__ = ["App", "Server", "bind"]
