"""receipts: what outsiders check. Signed checkpoints and inclusion proofs in public formats, so that tools of others read them too.

A receipt (C2SP tlog-proof) says: the decision at this position is a leaf of the tree with this root, and the notary signed that root. It
holds no secret, needs no server to check, and two of one notary can never contradict each other without showing it: their trees would not
be consistent.

| file | subject |
|---|---|
| `refusal` | `NotVerified`, the one error of everything that is checked, and its reasons |
| `note` | C2SP signed notes and the keys that verify them |
| `checkpoint` | C2SP checkpoints: origin, size, root |
| `proof` | C2SP tlog-proofs, as text |
| `key_history` | the notary's keys, each endorsed by the one before it |
| `issue` | `Issuer`: the notary's side; one signature for each tree size |

Everything but `issue` is what `notary.verify` stands on: no Kafka, no RocksDB, no asyncio.
"""

from notary.receipts.checkpoint import Checkpoint, checkpoint_of
from notary.receipts.issue import Issuer
from notary.receipts.note import VerifierKey, open_note, parse_verifier_key, sign_note
from notary.receipts.proof import Proof, proof_of
from notary.receipts.refusal import NotVerified, Reason

__all__ = [
    "Checkpoint",
    "Issuer",
    "NotVerified",
    "Proof",
    "Reason",
    "VerifierKey",
    "checkpoint_of",
    "open_note",
    "parse_verifier_key",
    "proof_of",
    "sign_note",
]
