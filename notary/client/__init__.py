"""client: has transactions decided, by whichever worker answers, and says no more than it knows.

A worker may die after it has logged a request and before it has answered. So whoever asks must be ready to ask again,
somewhere else, for as long as it takes; and that is harmless, since a transaction id is decided once, for ever (R7). This room
is that patience:

- a submission is encoded and signed **once**; every attempt sends the same bytes, so the same transaction ids;
- a worker that cannot be reached, is overloaded, or talks nonsense costs an attempt, never an answer: the next URL is asked;
- what a 202 says is decided is kept; only the rest is still asked for;
- when the deadline passes, `Unanswered` (an `OutcomeUnknown`) says which ids have no answer. The same requests again are safe;
- a refusal (`Refused`) is final: it is the submission that is wrong, and no other worker will think otherwise. Only on who the party
  is (401, 403) workers may differ for a while, so each is asked before that is believed;
- each outcome is checked by its receipt before it is returned, by the verifier keys that are given, or by the one that was trusted on first
  use. What no receipt proves is no outcome: the next URL is asked, and after all of them it is `Unproven`;
- two answers that contradict each other are never papered over: `Contradiction` carries both, as evidence.

Bad input is refused here, with the place in it, before anything is sent: by the same decoder that the workers use.

    with Client(["http://a:8080", "http://b:8080"], "O=Bank A,L=London,C=GB", Signer.from_file("bank-a.pem")) as client:
        [answer] = client.submit([TransactionRequest(inputs=[state], content_hash=digest)], deadline_s=30)

| file | subject | pure |
|---|---|---|
| `errors` | what a caller may conclude when there is no full answer | yes |
| `requests` | requests as programs write them; a submission's bytes; cutting many into submissions | yes |
| `signer` | a party's private key | no: reads files |
| `tls` | authorities and certificates of one's own | no: reads files |
| `answers` | what a worker says, held against what was asked | yes |
| `trust` | verifier keys, given or trusted on first use, and checking answers by them | no: a file of known notaries |
| `route` | which URL to ask next, and when | yes |
| `refusals` | when a refused party is the last word | yes |
| `transport` | one attempt, and attempts until the deadline: httpx | no |
| `client`, `blocking` | the two clients | no |
| `request_file` | requests from a file or a pipe, one by one | no |

No Kafka, no RocksDB: of this project only `notary.verify`, `notary.access`, `ordering.errors`, `ordering.ids` and `payload` are used.
"""

from notary.client.answers import Answer, Conflict, NotaryDescription, StateAnswer
from notary.client.blocking import Client
from notary.client.client import AsyncClient
from notary.client.errors import Contradiction, Refused, Unanswered, Unproven, Unreachable
from notary.client.requests import (
    BATCH_BYTES_MAX,
    BATCH_REQUESTS_MAX,
    TimeWindow,
    TransactionRequest,
    batches,
    submissions,
    transaction_ids,
)
from notary.client.route import Patience
from notary.client.signer import Signer
from notary.client.tls import tls_context
from notary.client.trust import KnownNotaries

__all__ = [
    "BATCH_BYTES_MAX",
    "BATCH_REQUESTS_MAX",
    "Answer",
    "AsyncClient",
    "Client",
    "Conflict",
    "Contradiction",
    "KnownNotaries",
    "NotaryDescription",
    "Patience",
    "Refused",
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
