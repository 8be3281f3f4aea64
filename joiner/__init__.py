"""joiner: joins both topics into requests in global order, and detects a log that has lost or changed records (rules R1 to R5, R10).

Think of a cloakroom: the *entries* in the ordering topic are the numbered tickets, the *payloads* the coats on many racks. The joiner calls
the numbers in turn and fetches each coat. A coat may arrive before its ticket or long after it, get lost, or come twice. Every worker hands
out the same coats in the same order: the earlier tickets determine which ticket counts (R2), and the first matching coat on the rack
belongs to it (R3).

docs/rules.md has the rules, and under "Words" all terms: head, hole, fill, fence, incarnation, view and others.

| file | subject | pure |
|---|---|---|
| `core` | `Joiner.step(records, now) -> Ready`: take records in their order, apply those at the head, propose fills and fences | yes |
| `applied` | the rule of each kind of record: when it takes effect, and its effects | yes |
| `ready` | state in, effects out, as values | yes |
| `control` | the owner of the log, the key in force, payload partitions and format versions (R10) | yes |
| `incarnations` | the incarnations: registered, fenced, last sequence counted | yes |
| `history` | the running hash over the records that took effect, and views of it (R10) | yes |
| `evidence` | views that differ from our own history, and the suspicions that follow | yes |
| `snapshot` | the core's complete state, as one value | yes |
| `queued` | the ordering records from the head on | yes |
| `payloads` | payload records until their entries are applied, and the content of an entry | yes |
| `buffer` | payload records in memory | yes |
| `dropped` | payload records dropped for lack of memory | yes |
| `due` | the times at which fills and fences are proposed | yes |
| `rate` | a worker's capacity, measured | yes |
| `queue`, `share` | the submissions admitted and not answered, bounded, and each party's share; the batches made from them | no |
| `sender` | one worker's producer side: its incarnations, both appends at once, resending of batches filled or lost | no |
| `recheck` | checks that the log still holds the records that the index was made from | no |
| `stalled` | detects readers and a head that make no progress | yes |
| `proposals` | appends the fills and fences that the core proposes | no |
| `driver` | poll -> step -> apply -> answer, and the watchdog | no |
| `settings` | limits, timeouts and intervals | yes |

The core computes and never waits: `Ready` has the changes that must be durable before an answer may leave (R8), and the driver persists
them. The core passes on the roots in other workers' checkpoints as `RootSeen`, with the voters (R9). It does not compare them.
"""

from joiner.buffer import Buffer
from joiner.control import LogState
from joiner.core import Joiner
from joiner.driver import Driver
from joiner.history import Effect, Mark
from joiner.incarnations import Incarnations, IncarnationState
from joiner.queue import AdmittedSubmission, Batch, Pending, SubmissionQueue
from joiner.ready import FillWanted, JoinerState, OrderedBatch, Ready, RootSeen, VoteVoid
from joiner.sender import Sender
from joiner.settings import DriverSettings, JoinerLimits, QueueLimits, SenderSettings
from joiner.snapshot import JoinerSnapshot

__all__ = [
    "AdmittedSubmission",
    "Batch",
    "Buffer",
    "Driver",
    "DriverSettings",
    "Effect",
    "FillWanted",
    "IncarnationState",
    "Incarnations",
    "Joiner",
    "JoinerLimits",
    "JoinerSnapshot",
    "JoinerState",
    "LogState",
    "Mark",
    "OrderedBatch",
    "Pending",
    "QueueLimits",
    "Ready",
    "RootSeen",
    "Sender",
    "SenderSettings",
    "SubmissionQueue",
    "VoteVoid",
]
