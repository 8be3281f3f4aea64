"""salvage: what the log lost in a disaster, put together again from all that survived (R11, docs/salvage.md).

Each survivor is a witness to one tree. An index or a snapshot states every leaf up to its size; a receipt states its leaf, the hashes of
its proof and the root of its size. Witnesses that contradict each other are refused, with the place and their names, before anything is
written. If none does, each lost position gets an item: its decision, the hash of its leaf, or the lost leaf.

The choice is pure, so it can be made again after the log was sealed, and is the same for the same sources. `notary salvage` appends it.

| file | subject | pure |
|---|---|---|
| `statements` | the statements that a source makes, and the errors | yes |
| `forest` | compares trees by their nodes | yes |
| `past` | checks that a notary can have made these decisions, in this order | yes |
| `choice` | chooses an item for each position | yes |
| `reach` | finds how far a mirror reaches, for `notary failover` | yes |
| `report` | puts the plan into words | yes |
| `receipts` | reads and verifies receipts and requests that parties kept | no |
| `indexes` | reads indexes and snapshots | no |
| `kept` | makes an index of the kept log | no |
"""
