"""archive: segments of the log, streamed to a place outside the brokers' disks by a worker, seconds behind its end.

A segment has the records of all topic-partitions between two moments: one Parquet file (zstd), and a manifest that is written last and
signed with the notary's key. `notary archive fetch` puts the segments behind the end of an archive into it, as a further range. So
`spark_join` restores and verifies them as it does everything else, and loss of all brokers loses seconds.

    <place>/files/<SHA-256>                                               records, named by the hash of the file
    <place>/manifests/<ordering offset>-<time sealed, ms>-<worker>.note   the manifest (docs/formats.md, Segments)

Only records that the worker has applied are sealed, and contents before the entries that name them. So the segments up to any moment are
the log as it once was: no entry in them lacks its content.

**One writer.** The log says whose turn it is: the incarnation that registered first, of those that are active in log time, seals every
`every_s`. Each later one looks at the place less often, and seals only when no other did lately. Two at once cost room and nothing
else, since a segment says which offsets it has, and equal offsets have equal records.

**Restartable.** A process that starts reads the manifests, and goes on where each topic-partition's segments end. Before it seals, it
compares the last sealed record of each with the log (R10): a log that lost its end is never mixed with the segments of the one before.

The place is not trusted: a file or manifest that was changed there is found. Manifests of former keys count too, since a segment adds
nothing that the log did not sign.

| file | subject |
|---|---|
| `segment` | `Segment`, signed and opened, and its file |
| `stream` | seals segments: the process beside a worker |
| `schedule` | when a worker has it seal |
| `settings` | `[archive]`, and the lines between the two |
| `fetch` | puts segments into an archive, and removes those that an archive has |
"""
