"""`AsyncClient`: the client for asyncio programs; `blocking.Client` is the client for all others."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from ssl import SSLContext
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from notary.client.answers import (
    Answer,
    NotaryDescription,
    StateAnswer,
    canonical_id,
    canonical_state,
    check_outcome,
    contradicting,
    read_decisions,
    read_notary,
    read_state,
    read_transaction,
)
from notary.client.errors import Contradiction, Rejected, Unanswered, Unproven, Unreachable
from notary.client.requests import PreparedRequest, RequestLike, prepare
from notary.client.route import RetryPolicy
from notary.client.signer import Signer
from notary.client.transport import Exhausted, Further, Reply, Transport, current_traceparent, rejected, wall_clock_s
from notary.client.trust import KnownNotaries, Trust
from notary.receipts.errors import NotVerified
from ordering.errors import ConfigurationError, Malformed
from ordering.ids import NAME_BYTES_MAX, excerpt

T = TypeVar("T")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?").fullmatch

SUBMISSION_DEADLINE_S = 60.0
"""The time to retry one submission, also that of `notary submit`. It is longer than a failover of the log's partition leaders."""
LOOKUP_DEADLINE_S = 10.0


class AsyncClient:
    """A party's client of one notary. It tries the workers' URLs in the given order until one answers.

    `party` and `signer` are needed to submit, and for look-ups at a notary that answers only its parties (docs/http.md, Access to reads).
    `notary_name` goes into every transaction id; without it, the client gets the name once from the notary. `tls` (see `tls_context`) is
    for a private certificate authority or a client certificate.

    Each outcome comes with a receipt, which is verified with `verifier_keys`. Without them it is verified with the key that is trusted on
    first use, which `known_notaries` reports and stores (`KnownNotaries`). An outcome without a valid receipt raises `Unproven`.

    The tasks of one event loop may share it. It must be closed: use it with `async with`. Raises `ConfigurationError` for invalid URLs,
    names or keys.
    """

    def __init__(
        self,
        urls: Sequence[str],
        party: str = "",
        signer: Signer | None = None,
        *,
        notary_name: str | None = None,
        retry_policy: RetryPolicy | None = None,
        tls: SSLContext | None = None,
        verifier_keys: Sequence[str] | str = (),
        known_notaries: KnownNotaries | None = None,
    ) -> None:
        self.party = _name(party, "party") if party or signer else ""
        self._signer = signer
        self._notary_name = None if notary_name is None else _name(notary_name, "notary")
        self._transport = Transport(urls, retry_policy or RetryPolicy(), tls)
        self._trust = Trust(self._transport.urls, verifier_keys, known_notaries)
        self._has_met = False
        self._claimed = ""
        """The notary's name as a worker that was not checked reports it, for look-ups; never for submissions."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Pending calls fail."""
        await self._transport.close()

    async def submit(
        self,
        requests: Iterable[RequestLike],
        *,
        deadline_s: float = SUBMISSION_DEADLINE_S,
        receipts: bool = True,
        traceparent: str | None = None,
    ) -> list[Answer]:
        """Submit the requests as one submission. Returns their answers, in order, when all are decided.

        The client sends the same bytes to one URL after the other until each request has an answer. Raises `Malformed` before it sends
        anything, `Rejected`, `Unproven`, `Contradiction`, `Unanswered` after `deadline_s`, or `Unreachable` if no worker even returned the
        notary's name by then. `receipts=False` requests answers without receipts, and trusts the worker, but not for the notary's name.

        `traceparent` (W3C Trace Context) names the parent of the notary's spans. With None the parent is the caller's current OpenTelemetry
        span, if there is one.
        """
        ends = asyncio.get_running_loop().time() + deadline_s
        if self._signer is None:
            raise ConfigurationError("to submit, the client must be given a party and its signer")
        if traceparent and not _TRACEPARENT(traceparent):
            raise Malformed(f"{excerpt(traceparent)} is no W3C Trace Context, such as 00-<32 hex digits>-<16 hex digits>-01", "traceparent")
        asked = list(requests)  # iterated once: an iterator would be empty the second time
        name = await self._name(ends, trusted=receipts or self._notary_name is None)
        # Encode and check everything before the first byte is sent, so that bad input raises here and not at a worker.
        known = _Known(prepare(asked, name, self.party, self._signer), self._trust if receipts else None)
        span = current_traceparent() if traceparent is None else traceparent
        headers = {"traceparent": span} if span else {}
        path = "/v1/submissions" if receipts else "/v1/submissions?receipts=false"
        body = known.prepared.body
        try:
            return await self._proven(lambda: self._transport.exchange("POST", path, known.read, ends, body, lambda: headers), ends)
        except Exhausted as problem:
            raise Unanswered(deadline_s, known.prepared.transaction_ids, known.answers, problem.reasons) from None
        except (Rejected, Unproven, Contradiction) as problem:
            problem.transaction_ids = known.prepared.transaction_ids
            problem.answers = tuple(known.answers)
            raise

    async def transaction(
        self, transaction_id: str | bytes, *, deadline_s: float = LOOKUP_DEADLINE_S, receipts: bool = True
    ) -> Answer | None:
        """Returns the decision of a transaction, with a receipt that proves it; None if the answering worker has not decided it (yet).

        None does not mean that the transaction was rejected. `receipts=False` requests no receipt, and trusts the worker. Raises
        `Malformed`, `Rejected`, `Unproven`, `Unreachable`.
        """
        wanted = canonical_id(transaction_id)
        path = f"/v1/transactions/{wanted}"
        ends = asyncio.get_running_loop().time() + deadline_s
        if receipts:
            await self._name(ends, trusted=True)
        sign = await self._signing(ends)

        def read(reply: Reply) -> tuple[Answer | None] | Further[tuple[Answer | None]]:
            if reply.status == 404 and reply.is_problem:
                return (None,)
            answer = read_transaction(_found(reply), wanted)
            if not receipts:
                return (answer,)
            # The same worker must prove it: if it cannot, the decision does not count either, and another worker is asked for both.
            return Further(f"{path}/receipt", sign(f"{path}/receipt"), lambda proof: self._prove(answer, proof))

        [answer] = await self._proven(lambda: self._look_up(path, read, ends, sign), ends)
        return answer

    async def state(self, state: str | bytes, *, deadline_s: float = LOOKUP_DEADLINE_S) -> StateAnswer:
        """Returns the consumer of a state, as far as the answering worker has read the log. No receipt proves this answer.

        Raises `Malformed`, `Rejected`, `Unreachable`.
        """
        wanted = canonical_state(state)
        ends = asyncio.get_running_loop().time() + deadline_s
        return await self._look_up(f"/v1/states/{wanted}", lambda reply: read_state(_found(reply), wanted), ends, await self._signing(ends))

    async def notary(self, *, deadline_s: float = LOOKUP_DEADLINE_S) -> NotaryDescription:
        """Returns the notary's name, keys and limits, as the worker reports them. Raises `Rejected`, `Unreachable`."""
        return await self._notary(asyncio.get_running_loop().time() + deadline_s)

    async def notary_name(self, *, deadline_s: float = LOOKUP_DEADLINE_S) -> str:
        """Returns the name that the caller gave; without one, the notary's own name once its key is trusted.

        Raises `Rejected`, `Unproven`, `Unreachable`.
        """
        return await self._name(asyncio.get_running_loop().time() + deadline_s, trusted=True)

    async def _name(self, ends: float, *, trusted: bool) -> str:
        """Returns the notary's name. With `trusted`, the client has keys to verify receipts with afterwards."""
        if trusted and not self._has_met and not (self._notary_name and self._trust.is_given):
            await self._meet(ends)
        if self._notary_name or trusted:
            return self._notary_name or ""
        self._claimed = self._claimed or (await self._notary(ends)).name
        return self._claimed

    async def _notary(self, ends: float, check: Callable[[NotaryDescription, str], None] | None = None) -> NotaryDescription:
        def read(reply: Reply) -> NotaryDescription:
            described = read_notary(_found(reply))
            if check is not None:
                check(described, reply.url)
            return described

        try:
            return await self._transport.exchange("GET", "/v1/notary", read, ends)
        except Exhausted as problem:
            raise Unreachable("no worker returned the notary's name", problem.reasons) from None

    async def _meet(self, ends: float, *, wants_more: bool = False) -> bool:
        """Get the notary's verifier keys. Returns true if there is a new trusted key. Raises `Unproven` for an untrusted one.

        `wants_more`: ask one worker after another until one has a new trusted key. Raises `Unproven` if none has.
        """
        has_more = False

        def check(notary: NotaryDescription, url: str) -> None:
            nonlocal has_more
            try:
                has_more = self._trust.meet(notary)
            except NotVerified as problem:
                raise Unproven(url, problem, "a verifier key") from None
            if wants_more and not has_more:
                raise Unproven(url, NotVerified("unknown-key", "it shows no new key"), "a verifier key")

        notary = await self._notary(ends, check)
        self._notary_name = self._notary_name or notary.name
        self._has_met = True
        return has_more

    async def _proven(self, ask: Callable[[], Awaitable[T]], ends: float) -> T:
        """Returns the result of `ask`. On an unknown key it gets the notary's keys once more, since the key may have been rotated."""
        keys = list(self._trust.keys)
        try:
            return await ask()
        except Unproven as problem:
            if problem.reason == "unknown-key" and self._trust.keys == keys:  # else another call has followed the rotation meanwhile
                try:
                    with suppress(Unproven, Rejected, Unreachable):
                        await self._meet(ends, wants_more=True)
                except ConfigurationError as cannot:  # the notary may have decided: the caller must get the transactions' ids
                    raise Unproven(problem.url, NotVerified("unknown-key", f"its new key cannot be kept: {cannot}")) from None
            if self._trust.keys == keys:
                raise
        try:
            return await ask()
        except Rejected as problem:
            problem.may_be_decided = True
            raise

    def _prove(self, answer: Answer, reply: Reply) -> tuple[Answer] | None:
        """Returns a decision with the receipt of a reply; None if the worker has no receipt for it yet. Raises `Rejected`, `Unproven`."""
        if reply.status == 404 and reply.is_problem:
            return None
        return (_checked(self._trust, msgspec.structs.replace(answer, receipt=_found(reply).decode(errors="replace")), reply.url),)

    async def _signing(self, ends: float) -> Callable[[str], dict[str, str]]:
        """Returns a function from a path to the headers of its look-up. Some workers answer only parties; others ignore the signature."""
        signer = self._signer
        if signer is None:
            return lambda path: {}
        name = await self._name(ends, trusted=False)
        return lambda path: signer.sign_read(self.party, name, path, wall_clock_s())

    async def _look_up(
        self, path: str, read: Callable[[Reply], T | Further[T] | None], ends: float, sign: Callable[[str], dict[str, str]]
    ) -> T:
        began = asyncio.get_running_loop().time()
        try:
            return await self._transport.exchange("GET", path, read, ends, headers=lambda: sign(path))
        except Exhausted as problem:
            raise Unreachable(f"no answer to {path} within {round(ends - began, 1):g} s", problem.reasons) from None


class _Known:
    """The answers received so far for one submission, and the URL of each."""

    def __init__(self, prepared: PreparedRequest, trust: Trust | None) -> None:
        """`trust` verifies the receipts; None means that the answers have none."""
        self.prepared = prepared
        self._trust = trust
        self.answers: list[Answer | None] = [None] * len(prepared.requests)
        self._from = [""] * len(prepared.requests)

    def read(self, reply: Reply) -> list[Answer] | None:
        """Add a reply. Returns all answers once there are all, None while some are missing."""
        if reply.status not in (200, 202):
            raise rejected(reply)
        received = read_decisions(reply.body, self.prepared.requests, complete=reply.status == 200)
        if self._trust is None:
            self._check_unproven(received)
        try:
            for at, answer in enumerate(received):
                if answer is not None:
                    self._add(at, answer, reply.url)
        except Unproven:
            self._check_together()  # those before it are outcomes
            raise
        self._check_together()
        complete = [answer for answer in self.answers if answer is not None]
        return complete if len(complete) == len(self.answers) else None

    def _check_unproven(self, received: Sequence[Answer | None]) -> None:
        """Raise `Malformed` for a reply without receipts that contradicts itself or its requests. It is no evidence, and does not count."""
        for answer, request in zip(received, self.prepared.requests, strict=True):
            if answer is not None:
                check_outcome(answer, request)
        if (found := contradicting(received, self.prepared.requests)) is not None:
            raise Malformed(found[0], "decisions")

    def _add(self, at: int, answer: Answer, url: str) -> None:
        if self._trust is not None:
            _checked(self._trust, answer, url)
        before = self.answers[at]
        if before is None:
            try:
                check_outcome(answer, self.prepared.requests[at])
            except Malformed as problem:
                raise self._contradiction(f"a decision contradicts its request: {problem}", (at, answer, url)) from None
            self.answers[at], self._from[at] = answer, url
        elif not before.same_decision(answer):
            why = f"two decisions for transaction {answer.transaction_id} contradict each other"
            raise self._contradiction(why, (at, before, self._from[at]), (at, answer, url))

    def _check_together(self) -> None:
        if (found := contradicting(self.answers, self.prepared.requests)) is not None:
            why, *pair = found
            raise self._contradiction(why, *[(at, answer, self._from[at]) for at in pair if (answer := self.answers[at]) is not None])

    def _contradiction(self, why: str, *evidence: tuple[int, Answer, str]) -> Contradiction:
        for at, _, _ in evidence:
            self.answers[at] = None  # it is no outcome
        return Contradiction(why, *[(answer, url) for _, answer, url in evidence])


def _checked(trust: Trust, answer: Answer, url: str) -> Answer:
    try:
        trust.check(answer)
    except NotVerified as problem:
        raise Unproven(url, problem, f"an outcome for transaction {answer.transaction_id}") from None
    return answer


def _found(reply: Reply) -> bytes:
    if reply.status != 200:
        raise rejected(reply)
    return reply.body


def _name(text: str, what: str) -> str:
    try:
        fits = 0 < len(text.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise ConfigurationError(
            f"the {what}'s name {excerpt(text)} is not 1 to {NAME_BYTES_MAX} bytes of UTF-8; give it as the notary knows it"
        )
    return text
