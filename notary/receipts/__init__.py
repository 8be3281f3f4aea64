"""receipts: signed checkpoints and inclusion proofs in public formats, which outsiders can verify with other tools too.

A receipt (C2SP tlog-proof) proves that the decision at this position is a leaf of the tree with this root, and that the notary signed that
root. It holds no secret, and verifying it needs no server. Two receipts of one notary that contradict each other expose the notary: their
trees are not consistent.

| file | subject |
|---|---|
| `errors` | `NotVerified`, the one error of all verification, and its reasons |
| `note` | C2SP signed notes and the keys that verify them |
| `checkpoint` | C2SP checkpoints: origin, size, root |
| `proof` | C2SP tlog-proofs, as text |
| `key_history` | the notary's keys, each endorsed by the one before it |
| `issue` | `Issuer`: makes checkpoints and receipts in the notary; one signature for each tree size |

`notary.verify` uses every module but `issue`. Those modules need no Kafka, no RocksDB and no asyncio.
"""

from notary.receipts.checkpoint import SignedCheckpoint, checkpoint_of
from notary.receipts.errors import NotVerified, Reason
from notary.receipts.issue import Issuer
from notary.receipts.note import VerifierKey, open_note, parse_verifier_key, sign_note
from notary.receipts.proof import Proof, proof_of

__all__ = [
    "Issuer",
    "NotVerified",
    "Proof",
    "Reason",
    "SignedCheckpoint",
    "VerifierKey",
    "checkpoint_of",
    "open_note",
    "parse_verifier_key",
    "proof_of",
    "sign_note",
]
