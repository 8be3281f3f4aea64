"""What docs/formats.md and docs/rules.md fix, as this room reads them. A second reading: nothing here is imported from the notary."""

from typing import Final

FORMAT_VERSION: Final = 1
"""The highest format version of ordering records that this software reads."""

SENT_AT_AHEAD_MAX_MS: Final = 60_000
"""How far append time may be ahead of the sender's clock before it is held back (R6)."""

ELECTORATE_MS: Final = 86_400_000
"""How long after its last activity, by log time, an incarnation belongs to the electorate (R9)."""

VIEWS_KEPT: Final = 1 << 16
"""A view of one of the last so many records in effect can be compared (R10); an older one says nothing."""

RECORD_DOMAIN: Final = b"notary/log/v1\n"
FILL_DOMAIN: Final = b"notary/fill/v1\n"
LOG_KEY_DOMAIN: Final = b"notary/log-key/v1\n"
NO_LOG_ID: Final = bytes(32)
"""Stands for the log id in the signature of the genesis record."""
SIGNATURE_BYTES: Final = 64
HASH_BYTES: Final = 32
FILL_BYTES: Final = HASH_BYTES + SIGNATURE_BYTES

TRANSACTION_DOMAIN: Final = b"notary/transaction/v1\n"
SUBMISSION_DOMAIN: Final = b"notary/submission/v1\n"
LEAF_PREFIX: Final = b"notary/decision/v1\n"

ID_BYTES: Final = 32
KEY_BYTES: Final = 16
"""Of a payload record's key: u64 incarnation, u64 sequence."""

REQUESTS_MAX: Final = 1_000
"""Of one submission."""
STATES_MAX: Final = 10_000
"""Inputs and references of one request together."""
PARTY_BYTES_MAX: Final = 255
NAME_BYTES_MAX: Final = 255
"""Of a notary."""
TIME_MAX_MS: Final = 2**53 - 1
INDEX_MAX: Final = 2**32 - 1
OPEN_FROM_MS: Final = -(2**63)
OPEN_UNTIL_MS: Final = 2**63 - 1

COMMITTED: Final = 0
INPUT_CONFLICT: Final = 1
REFERENCE_CONFLICT: Final = 2
OUTSIDE_TIME_WINDOW: Final = 3
"""The outcome byte of a leaf."""

OUTCOMES: Final = {
    COMMITTED: "committed",
    INPUT_CONFLICT: "input-conflict",
    REFERENCE_CONFLICT: "reference-conflict",
    OUTSIDE_TIME_WINDOW: "outside-time-window",
}
"""Their names: `committed`, or the reason of a rejection."""

INPUT: Final = 0
REFERENCE: Final = 1
"""The kind of a conflict."""
