"""snapshots: signed copies of an index, from which a worker on an empty disk starts sooner than by a replay of the whole log.

A snapshot is RocksDB's own files at one moment, and a manifest that says what they hold and is signed with the notary's key. The place that
keeps it, a folder or a bucket, is not trusted: a file or a manifest that was changed there is found, and the snapshot is not used.

    <place>/files/<SHA-256>                                          a file of RocksDB, named by its content
    <place>/manifests/<decisions>-<time made, ms>-<worker>.note      the manifest, a signed note (docs/formats.md, Snapshots)

Made while the worker serves: the files are linked (`notary.index.link_files`), hashed, and copied where the place has none of that content.
The manifest is written last, so a process that is killed leaves files that no manifest names, and `prune` removes them later. No manifest
is made of an index that is quarantined, in a root disagreement (R9) or suspected (R10).

A copy may be used under any worker name, and nothing in it has to be changed:

- An index belongs to a log, not to a worker: no row has its worker's name. Its folder has.
- A worker begins a new incarnation at every start (R5), so nobody goes on with the sequences of the index's former worker.
- The private key is no part of it. The manifest is accepted with the key in force or the prepared one, never with a former one: who stole
  that could else hand out an index of his own.
- A restored index is an index of a worker that was down for a while. R10 compares its history with the log before anything is applied, and
  the index refuses another notary, log or format version. Both are the checks of every start.
- Votes of copies are not independent (R9): a fault of the index that was copied is in the copy too, and both have the same root. So the
  cure of a root disagreement is a replay, with `NOTARY_SNAPSHOTS_URL=` empty (docs/runbook.md), and never a copy.

Files are removed one run later than the last manifest that names them, and not before they are older than a margin. A snapshot in the
making counts on files that an older one names. It would have to take longer than two runs of `prune` to miss one, and it looks again after
its manifest is written.

| file | subject |
|---|---|
| `manifest` | `Manifest`, signed and opened |
| `place` | `SnapshotStore`: the folder or the bucket that keeps the files |
| `make` | makes a snapshot of an index |
| `take` | lists, verifies, restores and prunes |
| `schedule` | when a worker makes one, and what it restores at its start |
"""
