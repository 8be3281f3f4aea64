"""notary: decides requests, stores and proves the decisions, and serves clients.

A request's way through the code:

    http/app        POST /v1/submissions: its route and its head
    bodies          collect the pieces of its body; wait for the party's turn
    gate            check capacity, party, quota, encoding (payload), signature
    joiner.Sender   gather into a batch, append payload and entry, wait
    joiner.Driver   read both topics, join
    decide          the decision function (pure)
    tree            append a leaf for each decision: the tiles that change (pure)
    index           one write batch: rows, tiles and offsets
    joiner.Sender   hand the decisions to the waiting calls
    receipts.issue  sign the root, once for each tree size
    http/in_flight  the answer: decisions, each with its receipt

A worker also checks itself (R9): `self_check` compares its roots with those of other workers, through the log, and audits its rows.

| place | subject |
|---|---|
| `decision`, `decide` | a decision and its leaf; the decision function (both pure) |
| `tree/`, `receipts/` | the tree of all decisions (pure); receipts, checkpoints and the key history |
| `verify` | offline verification of receipts and checkpoints: importable without Kafka, RocksDB and asyncio |
| `index/` | the RocksDB store |
| `agreement`, `self_check` | the root disagreement and its votes (pure); turns, the audit |
| `gate`, `bodies`, `quota`, `parties` | the parties that may submit, and the reasons to reject a submission |
| `keys` | the notary's own key |
| `worker`, `service` | the composition of one worker, without logic; its service from start to end |
| `http/` | the service |
| `acceptor/` | processes that read and verify submissions for a worker |
| `config`, `metrics`, `version` | settings, Prometheus, the version |
| `client/` | the Python client: importable without Kafka and RocksDB |
| `cli/` | the command line |
"""
