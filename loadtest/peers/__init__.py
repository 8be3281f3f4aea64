"""peers: other systems at the notary's work, in the same run on the same machine. `make compare`, or `python -P -m loadtest.peers`.

A figure of the notary alone says little. It needs a comparison with familiar alternatives: a database with a unique index, etcd, or Kafka
with complete requests in one partition. Each of them is a small file here, tuned as its own users would, and starts by one line:

    with etcd.started() as peer:        # servers on loopback, data in a temporary folder, all of it gone after the block
        peer.url                        # POST /v1/submissions, as at the notary

**The same work.** All get the same signed submissions from the same seed, 4 inputs a request, 1 or 100 requests a submission, over the same
number of connections. All have the same HTTP server, decoder and signature check before the peer (`http_adapter`), each in a process of its
own. Then follow the double-spend check and the record of the transaction, durable before the answer, and an answer with each outcome and
conflict, the ids in order. No receipts, since no peer has any: the notary is asked for none, but grows its tree all the same.

**The guarantees** of each:

| peer | acknowledged means | order, tree, receipts, replay | rejections, time windows, references |
|---|---|---|---|
| notary, 3 brokers | in the memory of all in-sync brokers, at least two; written to disk later | yes | recorded, decided by log time |
| notary-acceptor, the same with an acceptor process | the same | yes | the same |
| single-topic | the same | yes | the same |
| postgresql | fsynced on one disk | no | not recorded; inputs only |
| postgresql-3 | fsynced on two servers of three | no | the same |
| postgresql-jpa | fsynced on one disk | no | the same |
| etcd | fsynced on two members of three | etcd's revisions | the same |
| etcd-1 | fsynced on one disk | etcd's revisions | the same |

So a peer does less than the notary, and never more, with one exception: the notary's brokers do not fsync before they acknowledge. Like all
Kafka users, they rely on brokers that do not all fail at once. On one machine with one disk this favours the notary; on three machines the
peers' disks would work at the same time.

**A wrong peer fails.** Every answer is checked, and so are the states at each peer, before and after the loads (`contest`). One double
spend fails the run.

**Noise.** All peers run all the time, idle except the one whose turn it is, and take turns (A B C A B C), so that other activity of the
machine affects all of them. Idle brokers and workers take CPU time too (`--only` starts fewer). Ratios within one run are more stable than
rates; but on a machine that others use, the peer with the most processes loses most. `others_cores` is the CPU time of the rest of the
machine; if it is high, compare the CPU seconds, which are the most stable.

| file | subject |
|---|---|
| `__main__` | the command line; the peers, their turns; the notary itself as one of them |
| `postgresql` | one server or three, two ways to use them |
| `etcd`, `etcd_client/` | one member or three; the Go program with etcd's client |
| `single_topic` | the notary's own worker on a log of one partition |
| `http_adapter` | HTTP and signatures for a peer without them, in a process of its own |
| `contest` | checks that a peer is correct |
| `servers` | processes that are stopped in every case |

The results and the upper bounds (append and read, verify) are in `bench/figures/peers`.
"""
