"""payload: the requests of clients, from their JSON to transaction ids, and the encoding of a batch for the payload topic.

Think of a customs desk: a parcel (the body of `POST /v1/submissions`) is opened once, checked, and repacked in one standard form. Many
parcels travel in one crate, and every worker opens the crate by the same rules. In code:

- `decode_submission` accepts a body that follows the contract completely, or rejects all of it, naming the field and the reason
  (`Malformed`).
- `Submission.encoded` is the standard form, and `encode_batch` joins the submissions of one batch.
- `decode_requests` reads a batch. So all workers get the same requests with the same ids, or all get `CorruptRecord`: then the batch
  decides nothing (R3).

Decoding is total: it accepts, or raises the one error above; no input causes another exception. The result depends only on the bytes and
the notary's name. So a body that one worker accepts is accepted by all workers, for ever.

| file | subject |
|---|---|
| `strict_json` | strict reading of JSON, with the path to an error in the contract's words |
| `request` | a request and its transaction id |
| `submission` | the requests of one party under one signature |
| `signed_read` | the signature of a call that only reads |
| `codec` | a batch's submissions as the value of a payload record |
| `partitions` | the choice of a payload partition for a batch |

All of it is pure: no asyncio, clock, randomness, logging or IO. The notary checks that a party is known and its signature valid.
"""

from payload.codec import decode_requests, decode_requests_in_pieces, encode_batch
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
    "decode_in_pieces",
    "decode_request",
    "decode_requests",
    "decode_requests_in_pieces",
    "decode_submission",
    "encode_batch",
    "signed_message",
]
