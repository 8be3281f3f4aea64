"""notary: decides, keeps, serves.

The joiner hands over batches in global order; this room decides their requests, keeps what was decided, and talks to the world.

A request's way through the code:

    http/app        POST /v1/submissions: read the body, within limits
    admission       decode (payload), look up the party, verify the signature
    joiner.Sender   gather into a batch, append payload and entry, wait
    joiner.Driver   read both topics, join
    decide          the decision function (pure)
    index           one write batch: rows and offsets
    joiner.Sender   hand the decisions to whoever waits
    http/app        the answer

| place | subject |
|---|---|
| `decision`, `decide` | what a decision is; the decision function (both pure) |
| `index/` | the RocksDB store |
| `parties`, `keys`, `admission` | who may submit, and the notary's own key |
| `worker` | composition of one worker: no logic |
| `http/` | the service |
| `config`, `metrics`, `version` | settings, Prometheus, the version |
| `client/` | the Python client: importable without Kafka and RocksDB |
| `cli/` | the command line |
"""
