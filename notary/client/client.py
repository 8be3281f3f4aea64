"""The client for asyncio; `blocking.Client` is the same for everybody else."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from ssl import SSLContext
from types import TracebackType
from typing import Self, TypeVar

from notary.client.answers import (
    Answer,
    NotaryDescription,
    StateAnswer,
    canonical_id,
    read_decisions,
    read_notary,
    read_state,
    read_transaction,
)
from notary.client.errors import Contradiction, Refused, Unanswered, Unreachable
from notary.client.requests import Prepared, RequestLike, prepare
from notary.client.route import Patience
from notary.client.signer import Signer
from notary.client.transport import Exhausted, Reply, Transport, current_traceparent, refused
from ordering.errors import ConfigurationError
from ordering.ids import NAME_BYTES_MAX, excerpt, format_state, parse_state

T = TypeVar("T")

DEADLINE_S = 30.0
LOOKUP_DEADLINE_S = 10.0


class AsyncClient:
    """A party's client of one notary, over any number of its workers' URLs, which are asked in the order given until one answers.

    `party` and `signer` are only needed to submit. `notary_name` goes into every transaction id; left out, it is asked of the
    notary once. `tls` (see `tls_context`) is for an authority or a certificate of one's own. Safe to share between the tasks of one
    event loop; to be closed, so use it with `async with`. `ConfigurationError` for URLs or names that cannot be.
    """

    def __init__(
        self,
        urls: Sequence[str],
        party: str = "",
        signer: Signer | None = None,
        *,
        notary_name: str | None = None,
        patience: Patience | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        self.party = _name(party, "party") if party or signer else ""
        self._signer = signer
        self._notary_name = None if notary_name is None else _name(notary_name, "notary")
        self._transport = Transport(urls, patience or Patience(), tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. What is still being asked fails."""
        await self._transport.close()

    async def submit(
        self, requests: Iterable[RequestLike], *, deadline_s: float = DEADLINE_S, receipts: bool = True, traceparent: str | None = None
    ) -> list[Answer]:
        """Have the requests decided as one submission; their answers, in order, when all are decided.

        The same bytes are sent, again and again, to URL after URL until each request has an answer. Raises `Malformed` before
        anything is sent, `Refused`, `Contradiction`, `Unanswered` after `deadline_s`, or `Unreachable` if not even the notary's
        name could be had by then. `receipts=False` asks for answers without them. `traceparent` (W3C Trace Context) names the span that the
        notary's spans belong to; None: the caller's current span, if OpenTelemetry is in use and there is one.
        """
        ends = asyncio.get_running_loop().time() + deadline_s
        if self._signer is None:
            raise ConfigurationError("to submit, the client must be given a party and its signer")
        asked = list(requests)  # once only: an iterator would be empty the second time
        name = self._notary_name or (await self._notary(ends)).name
        # All of it before the first byte is sent: what is wrong with the input is found here, not at a worker.
        known = _Known(prepare(asked, name, self.party, self._signer))
        span = current_traceparent() if traceparent is None else traceparent
        headers = {"traceparent": span} if span else None
        path = "/v1/submissions" if receipts else "/v1/submissions?receipts=false"
        try:
            return await self._transport.exchange("POST", path, known.read, ends, known.prepared.body, headers)
        except Exhausted as problem:
            raise Unanswered(deadline_s, known.prepared.transaction_ids, known.answers, problem.reasons) from None
        except (Refused, Contradiction) as problem:
            problem.transaction_ids = known.prepared.transaction_ids
            problem.answers = tuple(known.answers)
            raise

    async def transaction(self, transaction_id: str | bytes, *, deadline_s: float = LOOKUP_DEADLINE_S) -> Answer | None:
        """The decision of a transaction, without receipt; None if the worker that answered has not decided it (yet).

        None is not "no": only a submission makes a transaction decided. Raises `Malformed`, `Refused`, `Unreachable`.
        """
        wanted = canonical_id(transaction_id)

        def read(reply: Reply) -> tuple[Answer | None]:
            if reply.status == 404 and reply.is_problem:
                return (None,)
            return (read_transaction(_found(reply), wanted),)

        [answer] = await self._look_up(f"/v1/transactions/{wanted}", read, deadline_s)
        return answer

    async def state(self, state: str | bytes, *, deadline_s: float = LOOKUP_DEADLINE_S) -> StateAnswer:
        """Whether a state is consumed, as far as the worker that answered has read. Raises like `transaction`."""
        wanted = format_state(parse_state(format_state(state) if isinstance(state, bytes) else state, "state"))
        return await self._look_up(f"/v1/states/{wanted}", lambda reply: read_state(_found(reply), wanted), deadline_s)

    async def notary(self, *, deadline_s: float = LOOKUP_DEADLINE_S) -> NotaryDescription:
        """Who the notary is, and its limits. Raises `Refused`, `Unreachable`."""
        return await self._notary(asyncio.get_running_loop().time() + deadline_s)

    async def _notary(self, ends: float) -> NotaryDescription:
        try:
            notary = await self._transport.exchange("GET", "/v1/notary", lambda reply: read_notary(_found(reply)), ends)
        except Exhausted as problem:
            raise Unreachable("no worker says which notary this is", problem.reasons) from None
        if self._notary_name is None:
            self._notary_name = notary.name
        return notary

    async def _look_up(self, path: str, read: Callable[[Reply], T], deadline_s: float) -> T:
        ends = asyncio.get_running_loop().time() + deadline_s
        try:
            return await self._transport.exchange("GET", path, read, ends)
        except Exhausted as problem:
            raise Unreachable(f"no answer to {path} within {deadline_s:g} s", problem.reasons) from None


class _Known:
    """What is known of a submission's outcome, and who said so."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.answers: list[Answer | None] = [None] * len(prepared.requests)
        self._from = [""] * len(prepared.requests)

    def read(self, reply: Reply) -> list[Answer] | None:
        """Take in a reply: all answers once there are all, None while some are missing."""
        if reply.status not in (200, 202):
            raise refused(reply)
        told = read_decisions(reply.body, self.prepared.requests, complete=reply.status == 200)
        for at, answer in enumerate(told):
            if answer is None:
                continue
            before = self.answers[at]
            if before is None:
                self.answers[at], self._from[at] = answer, reply.url
            elif not before.same_decision(answer):
                raise Contradiction(before, self._from[at], answer, reply.url)
            elif before.receipt is None:
                self.answers[at] = answer
        complete = [answer for answer in self.answers if answer is not None]
        return complete if len(complete) == len(self.answers) else None


def _found(reply: Reply) -> bytes:
    if reply.status != 200:
        raise refused(reply)
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
