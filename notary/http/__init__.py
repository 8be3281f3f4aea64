"""http: the service (docs/http.md).

No framework and no task stands between a body and its decision. The parser's events drive `connection`, which calls `app`. `app` calls the
gate (`notary.gate`), then the joiner's sender. Answers return by call-backs. Read these four modules in this order. Every answer that is
not a result is a problem document (RFC 9457) with a name from `problems`. No input of a client causes a 5xx other than `overloaded` and
`not-ready`.

| file | subject |
|---|---|
| `server` | one port: ends connections past their deadline, stops gracefully |
| `listener` | the socket: accepts connections, and makes them in turn |
| `places` | the number of connections, by address and party: who gets a place, and who gives one |
| `connection` | one connection: the effect of each event |
| `machine` | the states, events, transitions and time limits of a connection |
| `settings` | addresses, limits and times (`[http]`) |
| `parsing` | bytes -> calls, and the limits of all bytes outside bodies |
| `writing` | answers -> bytes, and clients that do not read them |
| `call` | a call and its answer, as connections, applications and acceptor processes see them |
| `app` | routes: where each call goes |
| `submission` | calls that send a submission, to a worker or to one of its acceptor processes |
| `in_flight` | a submission from the gate to its answer |
| `reads` | a call that only reads: answered at once, in pieces, or as a long poll |
| `readers` | the access check, where only parties may read |
| `lookups`, `query`, `health` | the answers to calls that only read |
| `turns` | work in pieces, in turns of the event loop |
| `lifecycle` | the worker that an application serves, the calls under way, and the path of every answer |
| `problems` | errors -> problem documents |
| `openapi` | the OpenAPI 3.1 document |
"""
