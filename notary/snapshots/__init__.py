"""snapshots: signed copies of an index. A worker on an empty disk starts from one sooner than by a replay of the complete log.

A snapshot consists of RocksDB's files at one moment, and of a manifest that describes them, signed with the notary's key. The store that
keeps it, a folder or a bucket, is not trusted: a file or manifest that was changed there is detected, and the snapshot is not used.

    <store>/files/<SHA-256>                                          a file of RocksDB, named by its content
    <store>/manifests/<decisions>-<time made, ms>-<worker>.note      the manifest, a signed note (docs/formats.md, Snapshots)

A snapshot is made while the worker serves: the files are linked (`notary.index.link_files`), hashed, and copied unless the store has that
content. The manifest is written last, so a process that is killed leaves files that no manifest names, and `prune` removes them later. No
manifest is made of an index that is quarantined, in a root disagreement (R9) or suspected (R10).

A copy may be used under any worker name without a change:

- An index belongs to a log, not to a worker: no row contains the worker's name; only the name of its folder does.
- A worker begins a new incarnation at every start (R5), so no worker continues the sequences of the index's former worker.
- It does not contain the private key. The manifest must be signed with the key in force or the prepared one, not with a former one: else a
  thief of that key could publish a false index.
- A restored index is like that of a worker that was down for a while. As at every start, R10 compares its history with the log before
  anything is applied, and the index refuses another notary, log or format version.
- Votes of copies are not independent (R9): a fault in the original index is in the copy too, and both have the same root. So a replay, with
  `NOTARY_SNAPSHOTS_URL=` empty (docs/runbook.md), settles a root disagreement, and a copy never does.

A run of `prune` removes a manifest, and a later run the files that only this manifest named, if they are older than a margin. A snapshot in
the making relies on files in the store that an older manifest names, or none. `prune` may remove such a file before the new manifest is
written, so `make` then checks all files again. It may also have listed the manifests before that, so it lists them again just before it
removes files. Only if the manifest is written and all files are checked between this second list and a removal, the file is lost. Then
`verify` reports it, and the next snapshot copies it again.

Sizes alone decide whether the store has a file. A file of the right length with other bytes is found by `verify`, which can remove it.

| file | subject |
|---|---|
| `manifest` | `Manifest`, signed and opened |
| `store` | `SnapshotStore`: the folder or the bucket that keeps the files |
| `make` | makes a snapshot of an index |
| `take` | lists, verifies, restores and prunes |
| `settings` | `[snapshots]` |
| `schedule` | when a worker makes one, and what it restores at its start |
"""
