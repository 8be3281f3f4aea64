"""archive: segments of the log, streamed to a store outside the brokers' disks by a worker, seconds behind its end.

A segment has the records of all topic-partitions between two moments: one Parquet file (zstd), and a manifest that is written last and
signed with the notary's key. `notary archive fetch` adds the segments after the end of an archive to it, as one more range. So `spark_join`
restores and verifies them like all other ranges, and the loss of all brokers loses only seconds of the log.

    <store>/files/<SHA-256>                                               records, named by the hash of the file
    <store>/manifests/<ordering offset>-<time sealed, ms>-<worker>.note   the manifest (docs/formats.md, Segments)

Ordering records are sealed only if the worker has applied them, and contents are sealed before the entries that name them. So the segments
up to any moment are the log at some time: no entry in them lacks its content.

**One writer.** The turn follows from the log. Among the incarnations active in log time, the one that registered first seals every
`every_s`. Each later one reads the store less often, and seals only if no other worker sealed lately. Two writers at once only waste space:
a segment lists its offsets, and records with the same offset are the same.

**Restartable.** A process reads the new manifests at its first commands, for a minute each, and then at each. The active writer reads them
at every 12th, since a listing grows with the store. It resumes where each topic-partition's segments end. Before it seals, it compares the
last sealed record of each topic-partition with the log (R10), and those at which segments overlap. So a log that lost its end is not mixed
with older segments. If two workers seal at the same moment, before and after the loss, the next comparison stops them, and `fetch` refuses
their segments.

The store is not trusted: a file or manifest that was changed there is detected. `fetch` refuses it; the stream skips and reports it, so
that one foreign file does not stop the archive. Manifests that a former key signed count too, since a store has segments from
before each rotation. So a thief of a former key who can write to the store can forge segments. `fetch` refuses every difference between
segments, or from the archive, and ordering records after the end of the key that signed them. It does not notice forged segments in place
of true ones that the thief removed (docs/spark.md, Between two archives).

| file | subject |
|---|---|
| `segment` | `Segment`, signed and opened, and its file |
| `stream` | seals segments, in a process beside a worker |
| `schedule` | decides when that process seals |
| `settings` | `[archive]`, and the messages between worker and process |
| `compared` | compares segments with each other and with an archive |
| `archived` | `ArchivedLog`: an archive, read as a log |
| `fetch` | adds segments to an archive, and removes those that an archive has |
"""
