"""Every call of a simulation, checked against the promises of docs/http.md for any call.

A live process answers within the wait that was requested, plus `MARGIN_S` for its work. It rejects only for a valid reason, and says when
to retry. It never forgets a decision that it has returned.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final

import msgspec

from notary.quota import LATE_S
from ordering.records import View
from tests.checkers.history import Decided
from tests.simulation.plan import Plan
from tests.simulation.process import Answer, Process

MARGIN_S: Final = 0.5
"""The time for signatures: a thread verifies them and its results arrive late. Nothing else takes time."""
WAIT_S_DEFAULT: Final = 5
WAIT_S_MAX: Final = 12
RETRY_AFTER_S_MAX: Final = 60
OPENS_AT: Final = 0.9
"""A full queue admits submissions again when a tenth has been decided (docs/http.md)."""
PARTY_PART: Final = 0.75 * 8 / 9
"""The least part of the capacity left by others for a party without a ticket (docs/http.md); 2 requests less, since parts are integers."""
POLLED_S: Final = 0.3
PROBLEMS: Final = {
    400: ("malformed",),
    401: ("unknown-party",),
    403: ("bad-signature",),
    404: ("not-found",),
    405: ("method-not-allowed",),
    413: ("too-large",),
    415: ("unsupported-media-type",),
    429: ("quota-exceeded",),
    503: ("overloaded", "not-ready"),
}
PAUSED_S: Final = 5.0
"""The time in seconds for which bodies that waited while their process was suspended may still cause rejections."""
SUBMISSIONS: Final = "/v1/submissions"
SUSPENDED: Final = (
    "reading was interrupted",
    "the log has not been compared",
    "the log contradicts",
    "a record shows another history",
    "this process did not run for a while",
    "while this worker replayed the log",
    "workers have different roots",
    "a step could not be written into this worker's index",
    "this worker's index is quarantined",
    "nothing is answered: the owner restores lost decisions",
)


class _Sent(msgspec.Struct):
    """A submission that was sent, and the time of its answer."""

    requests: int
    answered_s: float = inf


class Given(msgspec.Struct, frozen=True):
    """Decisions that a process has answered, with its view of the log at that moment."""

    process: Process
    view: View
    decisions: Sequence[Mapping[str, Any]]
    met: frozenset[int]


class Calls:
    """The calls to all processes. `problems` collects everything that a correct notary never does."""

    def __init__(self, plan: Plan, problems: list[str]) -> None:
        self.counts: Counter[str] = Counter()
        self.returned: dict[Process, dict[str, tuple[float, Decided]]] = {}
        """The decisions that each process has returned, by transaction id, each with the time of the first return."""
        self.met_in_call: dict[int, frozenset[int]] = {}
        """The losses that the process could know when it answered, by the number of the call in the history."""
        self.met_when_returned: dict[int, frozenset[int]] = {}
        """The losses that the process could know when it returned a decision to a look-up, by the decision's `id()`."""
        self.given: list[Given] = []
        """All decisions that were answered, in a plan whose log loses records."""
        self._largest: dict[Process, int] = {}
        self._plan = plan
        self._problems = problems
        self._sent: dict[tuple[Process, str], list[_Sent]] = {}
        self._reserved: dict[tuple[Process, str], list[tuple[float, int]]] = {}
        """By worker and party: the times until which rejected submissions reserve quota, and their requests."""

    def problem(self, process: Process, what: str) -> None:
        """Record a violation of the notary's guarantees."""
        self._problems.append(f"{process.name}: {what}")

    async def call(
        self,
        process: Process,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[bytes, bytes | None] | None = None,
        wait_s: int = 0,
    ) -> Answer | None:
        """Make one call; returns the answer, None if the process has died."""
        if process.dead:
            return None
        what, sent_s = f"{method} {path}", _now_s()
        try:
            async with asyncio.timeout(min(wait_s, WAIT_S_MAX) + MARGIN_S):
                answer = await process.call(method, path, body, headers)
        except TimeoutError:
            if not process.dead and not process.was_paused_since(sent_s):
                self.problem(process, f"{what} with a wait of {wait_s} s has no answer {MARGIN_S:g} s after that")
            return None
        if answer is None:
            if process.ended:
                self.problem(process, f"{what} had no answer when the process came to its end")
            return None
        self.counts[f"answered {answer.status}"] += 1
        self._hold(process, what, answer)
        return answer

    # ---- submissions ----

    async def submit(
        self, process: Process, party: str, body: bytes, requests: int, *, wait_s: int | None = None, receipts: bool = False
    ) -> Answer | None:
        """Send a submission that its party has signed. If `wait_s` is None, the server's default wait applies."""
        sent = _Sent(requests)
        self._sent.setdefault((process, party), []).append(sent)
        self.will_ask(process, requests)
        path = SUBMISSIONS if receipts else f"{SUBMISSIONS}?receipts=false"
        headers = {} if wait_s is None else {b"prefer": b"wait=%d" % wait_s}
        answer = await self.call(process, "POST", path, body, headers, WAIT_S_DEFAULT if wait_s is None else wait_s)
        sent.answered_s = _now_s()
        if answer is not None and answer.status == 429:
            self.hold_quota(process, party, requests, answer)
        if answer is not None and answer.status == 503:
            self.hold_rejection(process, answer, requests)
        return answer

    def hold_rejection(self, process: Process, answer: Answer, requests: int) -> None:
        """Check a 503 to a submission of this many requests.

        Either they do not fit the queue, or bodies waited to be decoded while the process was suspended, or the worker is not ready and
        `/readyz` gives the same reason.
        """
        self.will_ask(process, requests)
        returned, health = json.loads(answer.body), answer.health.splitlines()
        if returned["detail"].startswith("submissions wait ") and process.was_paused_since(_now_s() - PAUSED_S):
            return
        if returned["type"] == "/problems/overloaded":
            here = sum([int(line.rpartition(" ")[2]) for line in health if line.startswith("pending requests: ")])
            # Once full, for all or for this party, the queue stays closed until a tenth has been decided and the largest rejected
            # submission of any party fits.
            largest = max(requests, self._plan.requests_max, self._plan.quota_per_s, self._largest[process])
            if not here or max(here + largest, here / OPENS_AT) <= PARTY_PART * self._plan.pending_requests_max - 2:
                self.problem(process, f"overloaded, with {here} requests here and {requests} more")
        elif f"not ready: {returned['detail']}" not in health:
            self.problem(process, f"not ready, it says, because {returned['detail']!r}, and /readyz has {health}")

    def will_ask(self, process: Process, requests: int) -> None:
        """Note the size of a submission that is about to be sent."""
        self._largest[process] = max(requests, self._largest.get(process, 0))

    def hold_quota(self, process: Process, party: str, requests: int, answer: Answer, *, uncharged: int = 0) -> None:
        """Check a 429: over some recent period this party has sent that worker more than its quota for one second plus that period.

        A busy worker lets a submission wait, so the submission is charged at some time before its answer. A 429 is also right while quota
        is reserved for a larger submission that was rejected before. `uncharged` requests were sent in the party's name too, and are not
        charged to it.
        """
        per_s, now_s = self._plan.quota_per_s, _now_s()
        reserved = self._reserved.setdefault((process, party), [])
        is_reserved = any(now_s < until_s and requests < count for until_s, count in reserved)
        reserved.append((now_s + int(answer.headers[b"retry-after"]) + LATE_S + MARGIN_S, requests))
        if is_reserved:
            return
        sent = min(uncharged, per_s)
        for each in sorted(self._sent.get((process, party), []), key=lambda each: each.answered_s, reverse=True):
            sent += each.requests
            if sent > per_s * (1 + max(0.0, now_s - each.answered_s - MARGIN_S)):
                return
        self.problem(process, f"{party} has sent no more than {per_s} requests a second, and {requests} are more than its quota")

    # ---- decisions ----

    def note_returned(self, process: Process, decision: Decided) -> None:
        """Note a decision that this process has just returned."""
        self.returned.setdefault(process, {}).setdefault(decision["transaction_id"], (_now_s(), decision))

    async def look_up(self, process: Process, id_: str, wait_s: int = 0) -> dict[str, Any] | None:
        """Returns a process's answer to a look-up: None for a 404, an empty dict if it does not answer now."""
        sent_s = _now_s()
        answer = await self.call(process, "GET", f"/v1/transactions/{id_}{f'?wait={wait_s}' if wait_s else ''}", wait_s=wait_s)
        if answer is None or answer.status == 503:
            return {}
        known = self.returned.get(process, {}).get(id_)
        if known is not None and max(known[0], sent_s) + MARGIN_S < _now_s() and not process.was_paused_since(sent_s):
            self.problem(process, f"it knew {id_} since {known[0]:.3f} s, and answered its look-up at {_now_s():.3f} s")
        if answer.status == 404:
            position_next = max([decision["position"] + 1 for _, decision in self.returned.get(process, {}).values()], default=0)
            applied = json.loads(answer.body).get("applied")
            if known is not None or not isinstance(applied, int) or applied < position_next:
                self.problem(process, f"{id_} is not there, of {applied} positions; it has returned {known} and {position_next} positions")
            return None
        if answer.status != 200:
            self.problem(process, f"answered {answer.status} when it was asked for {id_}: {answer}")
            return {}
        returned: dict[str, Any] = json.loads(answer.body)
        self.met_when_returned[id(returned)] = answer.met
        self.note_returned(process, returned)
        return returned

    async def wait_for(self, process: Process, id_: str, wait_s: int) -> list[dict[str, Any] | None]:
        """Look up with a long poll, and meanwhile again and again without one; returns all answers."""
        waiting = asyncio.ensure_future(self.look_up(process, id_, wait_s))
        returned = []
        while not waiting.done():
            returned.append(await self.look_up(process, id_))
            await asyncio.wait([waiting], timeout=POLLED_S)
        return [*returned, waiting.result()]

    # ---- all answers ----

    def _hold(self, process: Process, what: str, answer: Answer) -> None:
        status, headers = answer.status, answer.headers
        if status in (202, 429, 503) and not 1 <= int(headers.get(b"retry-after", b"0")) <= RETRY_AFTER_S_MAX:
            self.problem(process, f"{what} is answered {status} and no Retry-After that makes sense: {headers}")
        if status < 400:
            return
        returned = json.loads(answer.body)
        name = returned["type"].removeprefix("/problems/")
        if name not in PROBLEMS.get(status, ()) or returned["status"] != status or headers[b"content-type"] != b"application/problem+json":
            self.problem(process, f"{what} is answered {status}: {answer}")
        looked = f" {SUBMISSIONS}" not in what
        if status == 503 and looked and (name != "not-ready" or not _may_be_silent(returned["detail"], answer.health.splitlines())):
            self.problem(process, f"{what} is answered 503, though serving is not suspended: {returned} {answer.health}")


def _may_be_silent(why: str, health: list[str]) -> bool:
    """Returns whether a look-up may be rejected: there is no worker yet (nothing is reported of it), or its index is suspected."""
    has_worker = any(line.startswith("worker: ") for line in health)
    shuts_down = any(line.startswith("not ready: this worker is shutting down") for line in health)
    return (shuts_down or f"not ready: {why}" in health) and (not has_worker or why.startswith(SUSPENDED))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
