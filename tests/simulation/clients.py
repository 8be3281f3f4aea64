"""Simulated clients: each has submissions to get decided, and looks transactions up in between.

A client sends the same bytes to one worker after the other until it receives the decisions. The calls, their times and their answers are
the history that is checked.
"""

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.checkers.history import Call, History, Submission
from tests.clients.party import Party, spend, state
from tests.simulation.calls import Calls, Given
from tests.simulation.hostile import Hostile
from tests.simulation.plan import CLOCK_STANDS_AT_MS, Plan
from tests.simulation.process import Answer, Process
from tests.simulation.readings import Readings

ASKED_AGAIN = 0.3
LOOKED_UP = 0.2
WAITED_FOR = 0.2
ASKED_LATER = 0.2
BURSTS_MAX = 2
RETRY_WAIT_S_MAX = 5
"""The longest time that a client waits before a retry, whatever Retry-After says."""
INSISTED_S_MAX = 15.0
"""The time that a healthy worker that has read the complete log may take to return one submission's decisions."""


def submissions(plan: Plan, party: Party, now_ms: int) -> list[Submission]:
    """Returns the submissions of a plan's clients: conflicts, references, time windows, and one transaction in several submissions."""
    draw = random.Random(f"submissions {plan.seed}")
    made: list[Submission] = []
    requests: list[dict[str, Any]] = []
    for number in range(plan.submissions):
        chosen: dict[str, dict[str, Any]] = {}
        for at in range(draw.randint(1, plan.requests_max)):
            if requests and draw.random() < 0.1:
                request = draw.choice(requests)
            else:
                states = [state(f"{draw.randrange(plan.states)}", 0) for _ in range(draw.randint(0, 3))]
                request = spend(*dict.fromkeys(states), content=f"{number}/{at}")
                if draw.random() < 0.2:
                    request["references"] = [state(f"{draw.randrange(plan.states)}", 0)]
                if not states or draw.random() < 0.15:
                    # The brokers' clock stops at multiples of this, so some decisions meet the very end of a window.
                    end = now_ms + draw.randint(-1, 6) * CLOCK_STANDS_AT_MS
                    request["time_window"] = draw.choice([{"from": None, "until": end}, {"from": end, "until": end + 10**9}])
            requests.append(request)
            chosen[json.dumps(request)] = request
        made.append(party.submission(*chosen.values()))
    return made


class Clients:
    """The clients of one simulation."""

    def __init__(self, plan: Plan, party: Party, history: History, processes: Callable[[], Sequence[Process]], now_ms: int) -> None:
        self.plan = plan
        self.history = history
        self.submissions = submissions(plan, party, now_ms)
        """The submissions of good clients, which they retry until they are answered."""
        self.history.submissions += self.submissions
        self.problems: list[str] = []
        self.looked_up: list[tuple[str, float, dict[str, Any]]] = []
        """Decisions that workers returned to look-ups: (worker, time in s, decision)."""
        self.loss = plan.client_loss
        self.calls = Calls(plan, self.problems)
        self.hostile = Hostile(plan, self.calls, history, self.submissions, processes)
        self.readings = Readings(plan, self.calls, history, processes)
        self._party = party
        self._processes = processes

    async def run(self) -> None:
        """Run all clients, which start during the fault phase; returns when each has received every outcome."""
        draw = random.Random(f"bursts {self.plan.seed}")
        bursts = [draw.uniform(0, self.plan.faults_s) for _ in range(draw.randint(1, BURSTS_MAX))]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.hostile.run())
            tasks.create_task(self.readings.run())
            for number in range(self.plan.clients):
                mine = self.submissions[number :: self.plan.clients]
                own = random.Random(f"client {number} of {self.plan.seed}")
                tasks.create_task(self._hurry(own, mine, draw.choice(bursts)) if self.plan.in_bursts else self._client(own, mine))

    async def _client(self, draw: random.Random, mine: Sequence[Submission]) -> None:
        for at, submission in enumerate(mine):
            left_s = max(0.0, self.plan.faults_s - asyncio.get_running_loop().time())
            await asyncio.sleep(min(left_s, draw.expovariate(1) * self.plan.faults_s / (len(mine) + 1)))
            await self.decide(draw, submission)
            if draw.random() < ASKED_AGAIN:
                await self.decide(draw, submission)
            if draw.random() < ASKED_LATER:
                await self.decide(draw, draw.choice(mine[: at + 1]))

    async def _hurry(self, draw: random.Random, mine: Sequence[Submission], at_s: float) -> None:
        await asyncio.sleep(at_s)
        for submission in mine:
            await self.decide(draw, submission)

    async def decide(self, draw: random.Random, submission: Submission) -> None:
        """Retry a submission until it is decided."""
        while True:
            processes = self._processes()
            retry_after_s = 0
            if processes:
                process = draw.choice(processes)
                status, retry_after_s = await self._ask(draw, process, submission)
                if status == 200:
                    if draw.random() < LOOKED_UP:
                        await self._look_up(draw, process, submission)
                    return
                if status == 202 and draw.random() < WAITED_FOR:
                    await self._wait_for(process, draw.choice(submission.ids), draw.choice([1, 10]))
            pause_s = draw.choice([0.01, 0.2, 1.0])
            obeys = self.plan.in_bursts or draw.random() < 0.5
            await asyncio.sleep(max(pause_s, min(retry_after_s, RETRY_WAIT_S_MAX) * draw.uniform(1, 1.5)) if obeys else pause_s)

    async def insist(self, running: Callable[[], Process | None], submission: Submission) -> None:
        """Retry until the process there returns the decisions, without network faults; then check that it knows each transaction."""
        began_s = asyncio.get_running_loop().time()
        while True:
            process, sent_s = running(), asyncio.get_running_loop().time()
            if process is not None:
                answer = await self._submit(process, submission, 5, receipts=True)
                if self._note(submission, process, sent_s, answer, receipts=True) == 200:
                    break
            await asyncio.sleep(0.5)
        if (took_s := asyncio.get_running_loop().time() - began_s) > INSISTED_S_MAX:
            self.problems.append(f"{process.name} took {took_s:.1f} s to return the decision, though nothing was wrong any more")
        for id_ in submission.ids:
            if await self.look_up(process, id_) is None:
                self.problems.append(f"{process.name} has answered {id_}, and does not know it")

    async def _submit(self, process: Process, submission: Submission, wait_s: int | None, *, receipts: bool) -> Answer | None:
        requests = len(submission.requests)
        return await self.calls.submit(process, self._party.name, submission.body, requests, wait_s=wait_s, receipts=receipts)

    async def _ask(self, draw: random.Random, process: Process, submission: Submission) -> tuple[int, int]:
        """Submit once, over a network that may lose call or answer; returns the status (0: no answer) and Retry-After in seconds."""
        sent_s = asyncio.get_running_loop().time()
        answer: Answer | None = None
        receipts = draw.random() < 0.7
        await asyncio.sleep(draw.expovariate(1 / 0.002))
        if draw.random() >= self.loss:
            answer = await self._submit(process, submission, draw.choice([None, 0, 1, 10, 10, 30]), receipts=receipts)
        await asyncio.sleep(draw.expovariate(1 / 0.002))
        if draw.random() < self.loss:
            answer = None
            self.calls.counts["answers lost"] += 1
        status = self._note(submission, process, sent_s, answer, receipts=receipts)
        return status, 0 if answer is None else int(answer.headers.get(b"retry-after", b"0"))

    def _note(self, submission: Submission, process: Process, sent_s: float, answer: Answer | None, *, receipts: bool) -> int:
        status = 0 if answer is None else answer.status
        returned = json.loads(answer.body)["decisions"] if answer is not None and status in (200, 202) else ()
        now_s = asyncio.get_running_loop().time()
        body = answer.body if answer is not None and status == 200 else None
        if answer is not None:
            self.calls.met_in_call[len(self.history.calls)] = answer.met
            if self.plan.loses and returned and answer.view is not None:
                self.calls.given.append(Given(process, answer.view, [one for one in returned if one is not None], answer.met))
        self.history.calls.append(Call(submission, process.name, sent_s, now_s, status, returned, body))
        decided = [decision for decision in returned if decision is not None]
        if any(("receipt" in decision) is not receipts for decision in decided):
            self.problems.append(f"{process.name} answered with receipts or without, whatever was asked: {receipts=}")
        for decision in decided:
            self.calls.note_returned(process, {name: value for name, value in decision.items() if name != "receipt"})
        if status not in (0, 200, 202, 429, 503):
            self.problems.append(f"{process.name} answered {status} to a good submission: {answer}")
        return status

    async def look_up(self, process: Process, id_: str) -> dict[str, Any] | None:
        """Returns a process's present answer to a look-up, None for a 404. The answer is compared with the log in the end."""
        returned = await self.calls.look_up(process, id_)
        if returned:
            self.looked_up.append((process.name, asyncio.get_running_loop().time(), returned))
        return returned

    async def _wait_for(self, process: Process, id_: str, wait_s: int) -> None:
        """Wait with a long poll at this worker instead of submitting again."""
        returned = await self.calls.wait_for(process, id_, wait_s)
        self.looked_up += [(process.name, asyncio.get_running_loop().time(), one) for one in returned if one]

    async def _look_up(self, draw: random.Random, process: Process, submission: Submission) -> None:
        """Check that a worker that has answered a submission also returns its decisions to a look-up (status never lags)."""
        id_ = draw.choice(submission.ids)
        before = self.calls.returned[process][id_][1]
        returned = await self.look_up(process, id_)
        if returned is None or returned not in ({}, before):
            self.problems.append(f"{process.name} answered {before}, and then {returned}")
