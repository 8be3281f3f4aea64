"""What a caller may conclude when there is no full answer.

| error | happened | do |
|---|---|---|
| `ordering.errors.Malformed` | nothing was sent | correct the request at `where` |
| `Unreachable` | surely nothing was applied | the same again, later |
| `Unanswered` | some are undecided, or decided and we do not know | the same requests again: they have the same ids (R7) |
| `Refused` | this submission is refused, by all who were asked | read `detail`; correct the submission, the key or the party |
| `Unproven` | a worker gave an outcome that no receipt proves: it is none | read `reason`; ask elsewhere |
| `Contradiction` | a worker broke the notary's promise | keep it as evidence and tell the operator |

`Unanswered`, `Refused`, `Unproven` and `Contradiction` carry `answers`, what was decided before: those stand.
"""

from collections.abc import Mapping, Sequence

import msgspec

from notary.client.answers import Answer
from notary.receipts.refusal import NotVerified
from ordering.errors import NotaryError, NotReady, OutcomeUnknown


def told(reasons: Mapping[str, str]) -> str:
    """URL -> what went wrong there last, as one line."""
    return "; ".join(f"{url}: {reason}" for url, reason in reasons.items()) or "no URL was asked"


class Unreachable(NotReady):
    """No URL gave an answer before the deadline, and nothing that could be applied was sent. `reasons`: URL -> the last failure."""

    def __init__(self, what: str, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__(f"{what}: {told(reasons)}")


class Unanswered(OutcomeUnknown):
    """The deadline passed. `answers` stand beside `transaction_ids` (hex), None where the outcome is unknown."""

    def __init__(
        self, deadline_s: float, transaction_ids: Sequence[str], answers: Sequence[Answer | None], reasons: Mapping[str, str]
    ) -> None:
        self.transaction_ids = tuple(transaction_ids)
        self.answers = tuple(answers)
        self.reasons = dict(reasons)
        unknown = self.answers.count(None)
        super().__init__(
            f"{unknown} of {len(self.answers)} requests have no answer within {deadline_s:g} s ({told(reasons)}); "
            "send the same requests again: that is safe, they have the same transaction ids"
        )


class Refused(NotaryError):
    """A worker refused the call with a problem document (RFC 9457). For 401 and 403 each other URL was asked too, and none took it.

    `type` is the contract's, such as `/problems/bad-signature`, or `about:blank` where the answer was no problem document.
    `answers` holds what an earlier 202 had decided, else None for each; it is empty for lookups. None is not "surely undecided":
    an attempt of the same call whose answer was lost may have been decided before this one was refused.
    """

    def __init__(self, url: str, status: int, type_: str, title: str, detail: str) -> None:
        self.url = url
        self.status = status
        self.type = type_
        self.title = title
        self.detail = detail
        self.transaction_ids: tuple[str, ...] = ()
        self.answers: tuple[Answer | None, ...] = ()
        super().__init__(f"{url} refused it with {status} {type_.removeprefix('/problems/')}: {detail or title}")


class Unproven(NotaryError):
    """A worker gave an outcome without a receipt that proves it, and no other URL gave a proven one. What is so is not known by it.

    `reason` is one of `notary.verify.Reason`, such as `bad-signature`. `answers` holds what was proven before, else None for each; it is
    empty for lookups.
    """

    def __init__(self, url: str, problem: NotVerified, about: str = "an outcome") -> None:
        self.url = url
        self.reason = problem.reason
        self.transaction_ids: tuple[str, ...] = ()
        self.answers: tuple[Answer | None, ...] = ()
        super().__init__(f"{url} gave {about} that is not proven, and so is none: {problem}")


class Contradiction(NotaryError):
    """Two decisions for one transaction that cannot both be true: evidence against the notary. Keep it.

    `first` and `second` are the answers, `first_url` and `second_url` who gave them. `answers` holds what is
    known besides, beside all `transaction_ids` of the submission.
    """

    def __init__(self, first: Answer, first_url: str, second: Answer, second_url: str) -> None:
        self.first, self.first_url = first, first_url
        self.second, self.second_url = second, second_url
        self.transaction_ids: tuple[str, ...] = ()
        self.answers: tuple[Answer | None, ...] = ()
        super().__init__(
            f"two decisions for transaction {first.transaction_id} contradict each other; keep this as evidence and tell the "
            f"operator of the notary: {first_url} said {_json(first)}, {second_url} said {_json(second)}"
        )


def _json(answer: Answer) -> str:
    return msgspec.json.encode(answer).decode()
