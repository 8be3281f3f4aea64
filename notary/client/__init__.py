"""client: the Python client. Submits transactions to any worker of a notary, retries, and verifies every answer.

A worker may die after it has logged a request and before it has answered. So a client must retry, also at other workers, until its
deadline. Retrying is safe, since a transaction id is decided once, for ever (R7). This package does the retries:

- A submission is encoded and signed **once**; every attempt sends the same bytes, so the same transaction ids.
- If a worker cannot be reached, sheds load or sends a malformed reply, only the attempt fails: the client tries the next URL.
- A 202 reports some decisions and null for the rest. The client keeps those decisions, and sends the same submission again for the rest.
- When the deadline passes, `Unanswered` (an `OutcomeUnknown`) lists the ids without an answer. Submitting the same requests again is safe.
- A rejected call (`Rejected`) is final: the submission is wrong, and every worker would reject it. But workers may differ for a while about
  the party (401, 403), so the client then tries every URL before it raises `Rejected`.
- Each outcome is verified by its receipt before it is returned: with the caller's verifier keys, or with the key that was trusted on first
  use. An outcome without a valid receipt does not count: the client tries the other URLs, and then raises `Unproven`.
- Answers that contradict each other, or their requests, raise `Contradiction`, which carries them as evidence.

The client checks its input before it sends anything, with the decoder that the workers use; the error names the field.

    with Client(["http://a:8080", "http://b:8080"], "O=Bank A,L=London,C=GB", Signer.from_file("bank-a.pem")) as client:
        [answer] = client.submit([TransactionRequest(inputs=[state], content_hash=digest)], deadline_s=30)

| file | subject | pure |
|---|---|---|
| `errors` | the errors, and the conclusion that a caller may draw from each | yes |
| `requests` | requests as programs write them; a submission's bytes; splitting many requests into submissions | yes |
| `signer` | a party's private key | no: reads files |
| `tls` | a private certificate authority, or a client certificate | no: reads files |
| `answers` | decoding of replies, and their comparison with the request | yes |
| `trust` | verifier keys, given or trusted on first use; verification of answers with them | no: a file of known notaries |
| `route` | choice of the next URL, and back-off | yes |
| `rejections` | URLs that rejected the party, and the decision to give up | yes |
| `transport` | one attempt, and attempts until the deadline, on httpx | no |
| `client`, `blocking` | the two clients | no |
| `request_file` | requests from a file or a pipe, one by one | no |

This package needs no Kafka and no RocksDB. It imports only these packages and modules of this project: `notary.verify`,
`notary.wire`, `notary.access`, `notary.receipts`, `ordering.errors`, `ordering.ids` and `payload`.
"""

from notary.client.answers import Answer, Conflict, NotaryDescription, StateAnswer
from notary.client.blocking import Client
from notary.client.client import SUBMISSION_DEADLINE_S, AsyncClient
from notary.client.errors import Contradiction, Rejected, Unanswered, Unproven, Unreachable
from notary.client.requests import (
    BATCH_BYTES_MAX,
    BATCH_REQUESTS_MAX,
    TimeWindow,
    TransactionRequest,
    batches,
    submissions,
    transaction_ids,
)
from notary.client.route import RetryPolicy
from notary.client.signer import Signer
from notary.client.tls import tls_context
from notary.client.trust import KnownNotaries

__all__ = [
    "BATCH_BYTES_MAX",
    "BATCH_REQUESTS_MAX",
    "SUBMISSION_DEADLINE_S",
    "Answer",
    "AsyncClient",
    "Client",
    "Conflict",
    "Contradiction",
    "KnownNotaries",
    "NotaryDescription",
    "Rejected",
    "RetryPolicy",
    "Signer",
    "StateAnswer",
    "TimeWindow",
    "TransactionRequest",
    "Unanswered",
    "Unproven",
    "Unreachable",
    "batches",
    "submissions",
    "tls_context",
    "transaction_ids",
]
