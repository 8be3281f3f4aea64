"""The client's errors, and what a caller may conclude from each.

| error | meaning | remedy |
|---|---|---|
| `ordering.errors.Malformed` | nothing was sent | correct the request at `where` |
| `Unreachable` | surely nothing was applied | retry later |
| `Unanswered` | the outcome of some requests is unknown | submit the same requests again: they have the same ids (R7) |
| `Rejected` | every worker that the client tried rejected the call | read `detail`; correct the submission, the key or the party |
| `Unproven` | a worker returned an outcome without a valid receipt; it does not count | read `reason`; try other workers |
| `Contradiction` | a worker broke the notary's promise | keep it as evidence and inform the operator |

`Unanswered`, `Rejected`, `Unproven` and `Contradiction` carry `answers`: decisions received before the error, which stay valid.
"""

from collections.abc import Mapping, Sequence

import msgspec

from notary.client.answers import Answer
from notary.receipts.errors import NotVerified
from ordering.errors import NotaryError, NotReady, OutcomeUnknown


def reasons_text(reasons: Mapping[str, str]) -> str:
    """Renders the last failure of each URL as one line."""
    return "; ".join(f"{url}: {reason}" for url, reason in reasons.items()) or "no URL was tried"


class Unreachable(NotReady):
    """No URL answered before the deadline, and no submission was sent. `reasons`: URL -> its last failure."""

    def __init__(self, what: str, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__(f"{what}: {reasons_text(reasons)}")


class Unanswered(OutcomeUnknown):
    """The deadline passed. `answers` has one item for each of `transaction_ids` (hex); None where the outcome is unknown."""

    def __init__(
        self, deadline_s: float, transaction_ids: Sequence[str], answers: Sequence[Answer | None], reasons: Mapping[str, str]
    ) -> None:
        self.transaction_ids = tuple(transaction_ids)
        self.answers = tuple(answers)
        self.reasons = dict(reasons)
        unknown = self.answers.count(None)
        super().__init__(
            f"{unknown} of {len(self.answers)} requests have no answer within {deadline_s:g} s ({reasons_text(reasons)}); "
            "send the same requests again: that is safe, they have the same transaction ids"
        )


class Rejected(NotaryError):
    """A worker rejected the call with a 4xx status. For 401 and 403 the client tried each other URL too, and none accepted the call.

    `type` is the type of the problem document (RFC 9457), such as `/problems/bad-signature`; `about:blank` if the reply names none.
    `answers` holds the decisions of an earlier 202, else None for each request; it is empty for lookups. None does not mean undecided: an
    earlier attempt of the same call, whose reply was lost, may have led to a decision.
    """

    def __init__(self, url: str, status: int, type_: str, title: str, detail: str) -> None:
        self.url = url
        self.status = status
        self.type = type_
        self.title = title
        self.detail = detail
        self.may_be_decided = False
        """True if an earlier attempt of the same submission may have been admitted: its outcomes are unknown."""
        self.transaction_ids: tuple[str, ...] = ()
        self.answers: tuple[Answer | None, ...] = ()
        super().__init__(f"{url} rejected it with {status} {type_.removeprefix('/problems/')}: {detail or title}")


class Unproven(NotaryError):
    """A worker returned an outcome without a valid receipt, and no other URL returned a proven one. The outcome stays unknown.

    `reason` is one of `notary.verify.Reason`, such as `bad-signature`. `answers` holds the outcomes proven before, else None for each
    request; it is empty for lookups.
    """

    def __init__(self, url: str, problem: NotVerified, about: str = "an outcome") -> None:
        self.url = url
        self.reason = problem.reason
        self.transaction_ids: tuple[str, ...] = ()
        self.answers: tuple[Answer | None, ...] = ()
        super().__init__(f"{url} returned {about} that is not proven, so it does not count: {problem}")


class Contradiction(NotaryError):
    """Decisions that break the notary's promise: evidence against the notary, to be kept.

    Two cannot both be true: they are for one transaction, or at one position, or log time falls from one to the other. Or both are
    committed, and the first one consumed a state that the second one needs. Or a decision contradicts its request: its time window, its
    states, or itself as the consumer of a state. `evidence` holds each decision with the URL that returned it. `answers` holds the other
    answers received so far, one item for each of `transaction_ids`.
    """

    def __init__(self, why: str, *evidence: tuple[Answer, str]) -> None:
        self.evidence = evidence
        self.transaction_ids: tuple[str, ...] = ()
        self.answers: tuple[Answer | None, ...] = ()
        returned = ", ".join([f"{url} returned {msgspec.json.encode(answer).decode()}" for answer, url in evidence])
        super().__init__(f"{why}; keep this as evidence and report it to the operator of the notary: {returned}")
