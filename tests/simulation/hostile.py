"""Hostile clients: they send malformed submissions, submissions without the named party's signature, and more than their quota.

Each call must be answered as docs/http.md says, and nothing of a rejected one may enter the log. They ask for the same states as the good
clients.
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from ordering.log import Record
from tests.checkers.history import Call, History, Submission
from tests.clients.party import Party, spend, state
from tests.simulation.calls import SUBMISSIONS, Calls
from tests.simulation.deployment import NOTARY, deployment, key_of
from tests.simulation.plan import Plan
from tests.simulation.process import Process

TOO_LARGE = b" " * ((2 << 20) + 1)
NOT_JSON = (
    b"",
    b"[",
    b"null",
    b"[]",
    b"{}",
    b"\xff",
    b'{"party": 1}',
    b"[" * 100_000,
    b'{"party": "O=Bank A,L=London,C=GB", "signature": ',
)
BURST = 4
"""The number of submissions, each as large as a quota, that are sent at once."""


class Attack(msgspec.Struct, frozen=True):
    """One call that must be rejected with `status`. Only this call can bring the bytes in `traces` into the log."""

    status: int
    body: bytes
    traces: Sequence[bytes]
    method: str = "POST"
    path: str = SUBMISSIONS
    headers: Mapping[bytes, bytes | None] = {}
    requests: int = 1


class Hostile:
    """The hostile clients of one simulation."""

    def __init__(
        self, plan: Plan, calls: Calls, history: History, good: Sequence[Submission], processes: Callable[[], Sequence[Process]]
    ) -> None:
        self._plan = plan
        self._calls = calls
        self._history = history
        self._good = good
        self._processes = processes
        self._draw = random.Random(f"hostile {plan.seed}")
        self._made = 0
        self.rejected: list[bytes] = []
        """Bytes that must not be found in the log."""

    async def run(self) -> None:
        """Run all attacks, each at its time."""
        kinds = [
            self._malformed,
            self._not_json,
            self._too_large,
            self._signed_by_another,
            self._unknown,
            self._changed,
            self._of_another_notary,
            self._wrongly_headed,
        ]
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._plan.hostile):
                chosen = self._draw.random()
                at_s = self._draw.uniform(0, self._plan.faults_s)
                if chosen < 0.1:
                    tasks.create_task(self._at(at_s, self._ask_once))
                elif chosen < (0.3 if self._plan.quota_per_s else 0.2):
                    tasks.create_task(self._at(at_s, self._hide_behind))
                elif self._plan.quota_per_s and chosen < 0.6:
                    tasks.create_task(self._at(at_s, self._ask_too_much))
                else:
                    attack = self._draw.choice(kinds)()
                    tasks.create_task(self._at(at_s, partial(self._strike, attack=attack)))

    def found_in(self, records: Iterable[Record]) -> list[str]:
        """Returns a problem for each trace of a rejected call that is in the log."""
        values = [record.value or b"" for record in records]
        return [f"rejected, and in the log: {trace!r}" for trace in self.rejected if any(trace in value for value in values)]

    async def _at(self, at_s: float, act: Callable[[Process], Awaitable[object]]) -> None:
        await asyncio.sleep(at_s)
        if processes := self._processes():
            await act(self._draw.choice(processes))

    async def _strike(self, process: Process, attack: Attack) -> None:
        self.rejected += attack.traces
        self._calls.will_ask(process, attack.requests)
        answer = await self._calls.call(process, attack.method, attack.path, attack.body, {b"prefer": b"wait=0", **attack.headers})
        if answer is not None and answer.status == 503:
            self._calls.hold_rejection(process, answer, attack.requests)
        elif answer is not None and answer.status == 429 and attack.status in (400, 403):
            # The quota is asked before format and signature. All of these attacks are in this party's name, and are not charged to it.
            self._calls.hold_quota(process, deployment().party.name, attack.requests, answer, uncharged=attack.requests)
        elif answer is not None and answer.status != attack.status:
            self._calls.problem(process, f"answered {answer.status}, and not {attack.status}, to {attack}: {answer}")

    # ---- beyond the quota ----

    async def _ask_once(self, process: Process) -> None:
        """Send a good submission once and never retry it: if it is rejected, nothing of it may enter the log."""
        await self._submit(process, deployment().rival, self._draw.randint(1, 3))

    async def _ask_too_much(self, process: Process) -> None:
        """Send several submissions as large as the quota at once: only the first may pass. Other parties have quotas of their own."""
        began_s = asyncio.get_running_loop().time()
        statuses = await asyncio.gather(*[self._submit(process, deployment().rival, self._plan.quota_per_s) for _ in range(BURST)])
        passed = len([status for status in statuses if status in (200, 202)])
        if passed - 1 > asyncio.get_running_loop().time() - began_s:
            self._calls.problem(process, f"of a burst of {BURST} times the quota {passed} have passed: {statuses}")
        await self._submit(process, deployment().party, 1)

    async def _hide_behind(self, process: Process) -> None:
        """Send as many requests under another party's name, which must not cost that party's quota, together with a good submission."""
        attacks = [self._signed_by_another(self._plan.quota_per_s or 1) for _ in range(BURST)]
        await asyncio.gather(self._ask_once(process), *[self._strike(process, attack) for attack in attacks])

    async def _submit(self, process: Process, party: Party, requests: int) -> int:
        submission = self._submission(party, requests)
        self._history.submissions.append(submission)
        sent_s = asyncio.get_running_loop().time()
        answer = await self._calls.submit(process, party.name, submission.body, requests, wait_s=0)
        status = 0 if answer is None else answer.status
        returned = json.loads(answer.body)["decisions"] if answer is not None and status in (200, 202) else ()
        if answer is not None:
            self._calls.met_in_call[len(self._history.calls)] = answer.met
        self._history.calls.append(Call(submission, process.name, sent_s, asyncio.get_running_loop().time(), status, returned))
        for decision in returned:
            if decision is not None:
                self._calls.note_returned(process, decision)
        if status in (429, 503):
            self.rejected += [bytes.fromhex(id_) for id_ in submission.ids]
        elif status not in (0, 200, 202):
            self._calls.problem(process, f"answered {status} to a good submission: {answer}")
        return status

    # ---- malformed calls ----

    def _malformed(self) -> Attack:
        request = self._request()
        hash_, input_ = request["content_hash"], request["inputs"][0]
        broken: list[dict[str, Any]] = [
            {**request, "outputs": []},
            {**request, "inputs": [input_, input_]},
            {**request, "references": [input_, input_]},
            {**request, "inputs": [f"{input_[:64]}:01"]},
            {**request, "inputs": [f"{input_[:64]}:{2**32}"]},
            {**request, "inputs": [input_.upper()]},
            {**request, "inputs": input_},
            {**request, "inputs": []},
            {**request, "content_hash": hash_.upper() if hash_.upper() != hash_ else hash_[1:]},
            {**request, "content_hash": hash_[1:]},
            {**request, "content_hash": None},
            {"inputs": [input_]},
            {**request, "time_window": {"from": None, "until": None}},
            {**request, "time_window": {"from": 5, "until": 5}},
            {**request, "time_window": {"from": 0.5, "until": None}},
            {**request, "time_window": {"from": None, "until": 2**53}},
            {**request, "time_window": {"from": None}},
        ]
        signed = json.loads(deployment().party.submission(request).body)
        submissions = [{**signed, "requests": [request, worse]} for worse in broken]
        submissions += [{**signed, "requests": each} for each in ([], [request, request], request, [request] * 1_001)]
        submissions += [
            {**signed, "note": ""},
            {**signed, "party": ""},
            {**signed, "signature": "no base64"},
            {**signed, "signature": None},
        ]
        return Attack(400, json.dumps(self._draw.choice(submissions)).encode(), self._traces(request))

    def _not_json(self) -> Attack:
        submission = deployment().party.submission(request := self._request())
        cut = submission.body[: self._draw.randrange(len(submission.body))]
        return Attack(400, self._draw.choice([cut, submission.body + b"}", *NOT_JSON]), self._traces(request))

    def _too_large(self) -> Attack:
        submission = deployment().party.submission(request := self._request())
        headers = self._draw.choice([{}, {b"content-length": None, b"transfer-encoding": b"chunked"}])
        return Attack(413, submission.body + TOO_LARGE[len(submission.body) :] + b" ", self._traces(request), headers=headers)

    def _wrongly_headed(self) -> Attack:
        submission = deployment().party.submission(request := self._request())
        calls: list[tuple[int, str, str, Mapping[bytes, bytes | None]]] = [
            (415, "POST", SUBMISSIONS, {b"content-type": b"text/plain"}),
            (415, "POST", SUBMISSIONS, {b"content-type": None}),
            (415, "POST", SUBMISSIONS, {b"content-type": b"application/json; charset=utf-16"}),
            (415, "POST", SUBMISSIONS, {b"content-encoding": b"gzip"}),
            (400, "POST", f"{SUBMISSIONS}?receipts=perhaps", {}),
            (405, "PUT", SUBMISSIONS, {}),
            (405, "POST", f"/v1/transactions/{submission.ids[0]}", {}),
            (404, "POST", f"{SUBMISSIONS}/", {}),
            (404, "POST", "/v1/submission", {}),
            (400, "GET", "/v1/transactions/17", {}),
            (400, "GET", f"/v1/transactions/{submission.ids[0]}?wait=-1", {}),
            (400, "GET", f"/v1/states/{request['inputs'][0]}1e9", {}),
            (404, "GET", "/tile/0/x1", {}),
        ]
        status, method, path, headers = self._draw.choice(calls)
        return Attack(status, submission.body, self._traces(request), method, path, headers)

    # ---- submissions without a valid signature ----

    def _signed_by_another(self, requests: int = 1) -> Attack:
        party = Party(NOTARY, deployment().party.name, self._draw.choice([key_of("a thief"), key_of("the rival")]))
        submission = self._submission(party, requests)
        return Attack(403, submission.body, [bytes.fromhex(id_) for id_ in submission.ids], requests=requests)

    def _unknown(self) -> Attack:
        submission = self._submission(Party(NOTARY, self._draw.choice(["O=Nobody", "O=Bank A,L=London,C=gb"]), key_of("the party")), 1)
        return Attack(401, submission.body, [bytes.fromhex(id_) for id_ in submission.ids])

    def _of_another_notary(self) -> Attack:
        """Signed by a known party for another notary: the ids differ here, and the signature covers the other notary's ids."""
        request = self._request()
        submission = Party("O=Another Notary", deployment().party.name, key_of("the party")).submission(request)
        return Attack(403, submission.body, [*self._traces(request), bytes.fromhex(submission.ids[0])])

    def _changed(self) -> Attack:
        """A good submission with its own signature, changed in transit."""
        returned = json.loads(self._draw.choice(self._good).body)
        requests = returned["requests"]
        at = self._draw.randrange(len(requests))
        before, own = requests[at], self._request()
        requests[at] = changed = self._draw.choice(
            [
                {**before, "content_hash": own["content_hash"]},
                {**before, "inputs": [*before["inputs"], state(own["content_hash"])]},
                {**before, "references": [*before.get("references", ()), state(own["content_hash"])]},
                {**before, "time_window": {"from": None, "until": 2**53 - 1 - self._made}},
            ]
        )
        if self._draw.random() < 0.2:
            requests[at:] = [before, *requests[at + 1 :], changed]
        return Attack(403, json.dumps(returned).encode(), self._traces(changed)[:1], requests=len(requests))

    # ---- requests ----

    def _request(self) -> dict[str, Any]:
        self._made += 1
        wanted = [state(f"{self._draw.randrange(self._plan.states)}", 0) for _ in range(self._draw.randint(1, 2))]
        return spend(*dict.fromkeys(wanted), content=f"hostile {self._plan.seed} {self._made}")

    def _submission(self, party: Party, requests: int) -> Submission:
        return party.submission(*[self._request() for _ in range(requests)])

    def _traces(self, request: Mapping[str, Any]) -> list[bytes]:
        """Returns the bytes that would show this request in the log: its id here, and its content hash."""
        return [bytes.fromhex(deployment().party.submission(request).ids[0]), request["content_hash"].encode()]
