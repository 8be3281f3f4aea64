"""joiner: puts requests together again in global order, and notices when the log is not the log that it was (rules R1 to R5, R10).

Think of a cloakroom: the *entries* in the ordering topic are the numbered tickets, the *payloads* the coats on many racks. The joiner
calls the numbers in turn and fetches each coat. A coat may hang there before its ticket was drawn or come long after, tickets and coats
get lost, and some are handed in twice; the same coats come out in the same order at every counter, because which ticket is called
depends on the tickets before it (R2), and which coat belongs to it on who hung one under its number first (R3).

| file | subject | pure |
|---|---|---|
| `core` | `Joiner.step(records, now) -> Ready`: judge, join, drop, propose fills and fences | yes |
| `ready` | state in, effects out, as values | yes |
| `control` | whose log it is, which key signs, which partitions and formats there are (R10) | yes |
| `lives` | which incarnations are registered, fenced, and how far each was counted | yes |
| `history` | the running hash over what took effect, and views of it (R10) | yes |
| `evidence` | views that are not our own history, and the doubts that follow | yes |
| `buffer` | payload records whose entries have not been judged | yes |
| `queue` | what was admitted and not answered, bounded; the batches made from it | no |
| `sender` | one worker's way in: its incarnations, send both at once, send again what was filled or lost | no |
| `look` | does the log still hold what the index was made from | no |
| `standstill` | what ought to move and does not | yes |
| `proposals` | appends the fills and fences that the core proposes | no |
| `driver` | poll -> step -> apply -> answer, and the watchdog | no |

The core computes and never waits: `Ready` names what has to be kept before an answer may leave (R8), and the driver sees to it. What other
workers say of their roots it hands on as `RootSeen`, with who has a vote (R9); it does not know what a tree is.
"""

from joiner.buffer import Buffer
from joiner.control import LogState
from joiner.core import Joiner
from joiner.driver import Applier, Driver, DriverSettings
from joiner.history import Effect, Mark
from joiner.lives import Life, Lives
from joiner.queue import AdmittedSubmission, Batch, Pending, QueueLimits, SubmissionQueue
from joiner.ready import FillWanted, JoinerLimits, JoinerState, OrderedBatch, Ready, RootSeen, VoteVoid
from joiner.sender import Sender, SenderSettings

__all__ = [
    "AdmittedSubmission",
    "Applier",
    "Batch",
    "Buffer",
    "Driver",
    "DriverSettings",
    "Effect",
    "FillWanted",
    "Joiner",
    "JoinerLimits",
    "JoinerState",
    "Life",
    "Lives",
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
