"""joiner: puts requests together again in global order (rules R1 to R5).

A batch travels as two records: its *entry* in the ordering topic says where it stands, its *payload* in some payload partition says
what it asks. Each topic may run ahead of the other, either record may be lost, and either may come twice. The joiner reads both and
emits batches in the order of the entries, each with the one content that every worker sees for it.

Why all workers emit the same: whether an entry counts is decided from the ordering topic alone (R2), and a batch's content is the first
record with its key in one partition (R3). Each rests on one partition's total order, and nothing else enters.

| file | subject | pure |
|---|---|---|
| `core` | `Joiner.step(records, now) -> Ready`: judge, join, drop, propose fills and fences | yes |
| `ready` | state in, effects out, as values | yes |
| `lives` | which lives are registered, fenced, and how far each was counted | yes |
| `buffer` | payloads whose entries have not been judged | yes |
| `queue` | what was taken in and not answered, bounded; the batches made from it | no |
| `sender` | one worker's way in: its lives, send both at once, send again what was filled | no |
| `driver` | poll -> step -> apply -> answer, and the watchdog | no |

The core is a value machine: records and the time come in, `Ready` goes out, and says what must be durable before anything is answered
(R8). The driver is the only part that waits.
"""

from joiner.buffer import Buffer
from joiner.core import Joiner
from joiner.driver import Applier, Driver, DriverSettings
from joiner.lives import Life, Lives
from joiner.queue import QueueLimits
from joiner.ready import FillWanted, JoinerLimits, JoinerState, OrderedBatch, Ready
from joiner.sender import Sender, SenderSettings

__all__ = [
    "Applier",
    "Buffer",
    "Driver",
    "DriverSettings",
    "FillWanted",
    "Joiner",
    "JoinerLimits",
    "JoinerState",
    "Life",
    "Lives",
    "OrderedBatch",
    "QueueLimits",
    "Ready",
    "Sender",
    "SenderSettings",
]
