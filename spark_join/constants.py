"""The numbers that docs/formats.md and docs/rules.md define, written down a second time: nothing here is imported from the notary."""

from hashlib import sha256
from typing import Final

FORMAT_VERSION: Final = 2
"""The highest format version that this software reads."""

RECORD_FORMAT: Final = 1
"""The format version of the kinds 1 to 10; a `settle` record (10) may have `SALVAGE_FORMAT` instead."""

SALVAGE_FORMAT: Final = 2
"""The format version of the kinds 11 and 12, of seals (R11), and of `settle` records that name a key."""

SALVAGE_BYTES_MAX: Final = 1 << 20
"""The most bytes in a record of kind 11."""

SENT_AT_AHEAD_MAX_MS: Final = 60_000
"""The most by which an append time may exceed the sender's clock: a later append time counts as this much later (R6)."""

VOTERS_MS: Final = 86_400_000
"""The log time for which an incarnation stays a voter after its registration or its last counted entry (R9)."""

VIEWS_KEPT: Final = 1 << 16
"""The number of histories that a reader keeps. It can compare views of that many last records in effect, and no older views (R10)."""

RECORD_DOMAIN: Final = b"notary/log/v1\n"
FILL_DOMAIN: Final = b"notary/fill/v1\n"
SEAL_DOMAIN: Final = b"notary/seal/v1\n"
LOG_KEY_DOMAIN: Final = b"notary/log-key/v1\n"
NO_LOG_ID: Final = bytes(32)
"""Replaces the log id in the message that the genesis record's signature covers."""
SIGNATURE_BYTES: Final = 64
HASH_BYTES: Final = 32
FILL_BYTES: Final = HASH_BYTES + SIGNATURE_BYTES
"""Bytes of a fill and of a seal."""

STATE_BYTES: Final = 36
CONFLICT_BYTES: Final = STATE_BYTES + 1 + HASH_BYTES

TRANSACTION_DOMAIN: Final = b"notary/transaction/v1\n"
SUBMISSION_DOMAIN: Final = b"notary/submission/v1\n"
LEAF_PREFIX: Final = b"notary/decision/v1\n"
LOST_PREFIX: Final = b"notary/lost/v1\n"

ID_BYTES: Final = 32
KEY_BYTES: Final = 16
"""Bytes in the key of a payload record: u64 incarnation, u64 sequence."""

REQUESTS_MAX: Final = 1_000
"""Requests in one submission."""
STATES_MAX: Final = 10_000
"""Inputs and references of one request together."""
PARTY_BYTES_MAX: Final = 255
NAME_BYTES_MAX: Final = 255
"""Bytes in a notary's name."""
TIME_MAX_MS: Final = 2**53 - 1
INDEX_MAX: Final = 2**32 - 1
OPEN_FROM_MS: Final = -(2**63)
OPEN_UNTIL_MS: Final = 2**63 - 1

ROOT_OF_NOTHING: Final = sha256(b"").digest()
"""The root of a tree without leaves (RFC 6962, 2.1)."""

COMMITTED: Final = 0
INPUT_CONFLICT: Final = 1
REFERENCE_CONFLICT: Final = 2
OUTSIDE_TIME_WINDOW: Final = 3
"""These four are the outcome byte of a leaf."""

OUTCOMES: Final = {
    COMMITTED: "committed",
    INPUT_CONFLICT: "input-conflict",
    REFERENCE_CONFLICT: "reference-conflict",
    OUTSIDE_TIME_WINDOW: "outside-time-window",
}
"""The name of each outcome: `committed`, or the reason of a rejection."""

INPUT: Final = 0
REFERENCE: Final = 1
"""These two are the kind of a conflict."""
