"""payload: what clients ask, from their JSON to transaction ids, and how a batch of it is written to the payload topic.

Think of a customs desk. A parcel (the body of `POST /v1/submissions`) is opened once, strictly: either everything in it is
as the contract says, or it is refused whole with the place and the reason (`Malformed`). What passes is repacked in one
standard form (`Submission.encoded`), and only such parcels travel, many to a crate (`encode_batch`). Every worker opens
every crate with the same eyes (`decode_requests`), so all see the same requests with the same ids, or all see a crate that
counts as empty (`CorruptRecord`, R3).

The promise: decoding is total (accept, or that one error; no input makes any other exception), it is a function of the
bytes and the notary's name only, and what was accepted once is accepted by all, for ever.

| file | subject |
|---|---|
| `strict_json` | JSON read strictly; where an error is, in the contract's words |
| `request` | a request and its transaction id |
| `submission` | what one party asks at once, and what it signs |
| `signed_read` | the signature of a call that only reads |
| `codec` | a batch's submissions as the value of a payload record |
| `partitions` | which payload partition a batch goes to |

All of it is pure: no asyncio, clock, randomness, logging or IO. Whether a party is known and its signature good is asked by
the notary.
"""

from payload.codec import decode_batch, decode_requests, encode_batch
from payload.partitions import PartitionChoice
from payload.request import (
    INPUTS_AND_REFERENCES_MAX,
    OPEN_FROM_MS,
    OPEN_UNTIL_MS,
    TIME_MAX_MS,
    Request,
    decode_request,
)
from payload.submission import (
    PARTY_BYTES_MAX,
    REQUESTS_MAX,
    SUBMISSION_BYTES_MAX,
    Submission,
    check_party,
    decode_in_pieces,
    decode_submission,
    signed_message,
)

__all__ = [
    "INPUTS_AND_REFERENCES_MAX",
    "OPEN_FROM_MS",
    "OPEN_UNTIL_MS",
    "PARTY_BYTES_MAX",
    "REQUESTS_MAX",
    "SUBMISSION_BYTES_MAX",
    "TIME_MAX_MS",
    "PartitionChoice",
    "Request",
    "Submission",
    "check_party",
    "decode_batch",
    "decode_in_pieces",
    "decode_request",
    "decode_requests",
    "decode_submission",
    "encode_batch",
    "signed_message",
]
