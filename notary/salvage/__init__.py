"""salvage: restores decisions that the log lost in a disaster, from everything that survived (R11, docs/salvage.md).

Each survivor is a witness to one tree. An index or a snapshot states every leaf up to its size. A receipt states its leaf, the hashes of
its proof, and the root at its size. Witnesses that contradict each other are refused, with the position and their names, before anything is
written. If none contradicts another, each lost position gets an item: its decision, the hash of its leaf, or the lost leaf.

The choice of the items is pure: the same sources give the same choice, also after the log was sealed. `notary salvage` appends the items.

| file | subject | pure |
|---|---|---|
| `statements` | the statements that a source makes, and the errors | yes |
| `forest` | compares trees by their nodes | yes |
| `past` | checks that a notary can have made the decisions in this order | yes |
| `choice` | chooses an item for each position | yes |
| `reach` | finds how far a mirror reaches, for `notary failover` | yes |
| `report` | describes the plan in words | yes |
| `receipts` | reads and verifies receipts and requests that parties kept | no |
| `indexes` | reads indexes and snapshots | no |
| `goal` | the log as it must be after a salvage, and its file | yes |
| `key_files` | this machine's key files, and the keys that attempts made | no |
| `kept` | makes an index of the kept log | no |
"""
