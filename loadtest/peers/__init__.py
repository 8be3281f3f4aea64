"""peers: others at the notary's work, in the same run on the same machine. `make compare`, or `python -P -m loadtest.peers`.

A figure of the notary alone says little. What would those have who used what they know instead: a database with a unique index, etcd,
or Kafka with the whole requests in one partition? Each of them is a small file here, tuned as its own users would, and starts by one line:

    with etcd.started() as peer:        # servers on loopback, data in a temporary folder, all of it gone after the block
        peer.url                        # POST /v1/submissions, as at the notary

**The same work**: the same signed submissions from the same seed, 4 inputs a request, 1 or 100 requests a submission, the same number of
connections, the same HTTP server, decoder and check of signatures before the peer (`front`), each in a process of its own; then the
double-spend check and the record of the transaction, durable before the answer; an answer with each outcome and conflict, the ids in
their order. No receipts, since no peer has any: the notary is asked without, but grows its tree all the same.

**What each promises**, and keeps where it says so:

| peer | acknowledged means | order, tree, receipts, replay | rejections, time windows, references |
|---|---|---|---|
| notary, 3 brokers | in the memory of all brokers in sync, two at least; written behind | yes | recorded, decided by log time |
| notary-intake, the same with an intake process | the same | yes | the same |
| single-topic | the same | yes | the same |
| postgresql | fsynced on one disk | no | not recorded; inputs only |
| postgresql-3 | fsynced on two servers of three | no | the same |
| postgresql-jpa | fsynced on one disk | no | the same |
| etcd | fsynced on two members of three | etcd's revisions | the same |
| etcd-1 | fsynced on one disk | etcd's revisions | the same |

So a peer does less than the notary, and never more. What the notary's brokers do not do is fsync before they acknowledge: they trust in
not all dying at once, as Kafka's users do. On one machine with one disk that favours the notary; three machines would make the disks
of the others work at the same time.

**Who is wrong has lost.** Before the loads many clients fight over few states at each peer; after each load some of it is asked again,
and its states are tried once more (`contest`). Every answer of a load is checked too. One double spend, and the run fails.

**Noise.** All peers are up all the time, idle but for the one whose turn it is, and take turns (A B C A B C), so that what else the machine
does meets all of them. Ratios within one run hold better than rates; but a machine that others use takes most from whoever has most
processes at work. `others_cores` says how much the rest of the machine took: with much of it, look at the CPU seconds, which hold best.

| file | subject |
|---|---|
| `ours`, `single_topic` | the notary; the same worker on a log of one partition |
| `postgresql` | one server or three, two ways to use them |
| `etcd`, `etcd_client/` | one member or three; the Go program that speaks to them |
| `front`, `serve` | HTTP and signatures for a peer that has none; its process |
| `contest` | whether a peer is right |
| `turns`, `table` | who takes turns; what came of it |
| `limits` | what nothing here can be faster than: append and read, apply, verify |
| `servers` | processes that end whatever happens |
| `fetch` | PostgreSQL from Debian, etcd from its Go modules |
"""
