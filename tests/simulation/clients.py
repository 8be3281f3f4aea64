"""Simulated clients: each has submissions to get decided, sends the same bytes to one worker after the other until it is told, and looks
things up in between. What they asked, when, and what they heard, is the history that is checked.
"""

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.checkers.history import Call, History, Submission
from tests.kafka.asking import Party, spend, state
from tests.simulation.plan import CLOCK_STANDS_AT_MS, Plan
from tests.simulation.process import Answer, Process

CALL_S_MAX = 20.0
ASKED_AGAIN = 0.3
LOOKED_UP = 0.2


def submissions(plan: Plan, party: Party, now_ms: int) -> list[Submission]:
    """What the clients of a plan will ask: conflicts, references, windows, and one transaction in several submissions."""
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
                    # When the brokers' clock stands still, it does so at such a time: the very end of a window is met, too.
                    end = now_ms + draw.randint(-1, 6) * CLOCK_STANDS_AT_MS
                    request["time_window"] = draw.choice([{"from": None, "until": end}, {"from": end, "until": end + 10**9}])
            requests.append(request)
            chosen[json.dumps(request)] = request
        made.append(party.submission(*chosen.values()))
    return made


class Clients:
    """All clients of one simulation."""

    def __init__(self, plan: Plan, party: Party, history: History, processes: Callable[[], Sequence[Process]], now_ms: int) -> None:
        self.plan = plan
        self.history = history
        self.history.submissions += submissions(plan, party, now_ms)
        self.problems: list[str] = []
        self.looked_up: list[tuple[str, float, dict[str, Any]]] = []
        """Decisions that workers told when they were asked for one: (who, when in s, what)."""
        self.loss = plan.client_loss
        self._processes = processes

    async def run(self, spread_s: float) -> None:
        """Return when every client has been told the outcome of everything; they begin within so many seconds."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self.plan.clients):
                mine = self.history.submissions[number :: self.plan.clients]
                tasks.create_task(self._client(random.Random(f"client {number} of {self.plan.seed}"), mine, spread_s))

    async def _client(self, draw: random.Random, mine: Sequence[Submission], spread_s: float) -> None:
        for submission in mine:
            await asyncio.sleep(draw.expovariate(1) * spread_s / (len(mine) + 1))
            await self.decide(draw, submission)
            if draw.random() < ASKED_AGAIN:
                await self.decide(draw, submission)

    async def decide(self, draw: random.Random, submission: Submission) -> None:
        """Ask until it is decided."""
        while True:
            processes = self._processes()
            if processes:
                process = draw.choice(processes)
                if await self._ask(draw, process, submission) and draw.random() < LOOKED_UP:
                    await self._look_up(draw, process, submission)
                    return
                if self.history.calls[-1].status == 200 and self.history.calls[-1].submission is submission:
                    return
            await asyncio.sleep(draw.choice([0.01, 0.2, 1.0]))

    async def insist(self, running: Callable[[], Process | None], submission: Submission) -> None:
        """Ask whoever runs there until it tells, without a network in between; then it knows each transaction, too."""
        while True:
            process, sent_s = running(), asyncio.get_running_loop().time()
            answer = None if process is None else await self._call(process, submission, 5, receipts=True)
            if process is not None and self._note(submission, process, sent_s, answer, receipts=True) == 200:
                break
            await asyncio.sleep(0.5)
        for id_ in submission.ids:
            if await self.look_up(process, id_) is None:
                self.problems.append(f"{process.name} has answered {id_}, and does not know it")

    async def _call(self, process: Process, submission: Submission, wait_s: int, *, receipts: bool) -> Answer | None:
        query = "" if receipts else "?receipts=false"
        return await process.call("POST", f"/v1/submissions{query}", submission.body, {b"prefer": b"wait=%d" % wait_s})

    async def _ask(self, draw: random.Random, process: Process, submission: Submission) -> bool:
        """Ask once, over a network that may lose the call or its answer; whether it is all decided."""
        sent_s = asyncio.get_running_loop().time()
        answer: Answer | None = None
        receipts = draw.random() < 0.7
        try:
            async with asyncio.timeout(CALL_S_MAX):
                await asyncio.sleep(draw.expovariate(1 / 0.002))
                if draw.random() >= self.loss:
                    answer = await self._call(process, submission, draw.choice([0, 1, 10]), receipts=receipts)
                await asyncio.sleep(draw.expovariate(1 / 0.002))
        except TimeoutError:
            answer = None
        if draw.random() < self.loss:
            answer = None
        return self._note(submission, process, sent_s, answer, receipts=receipts) == 200

    def _note(self, submission: Submission, process: Process, sent_s: float, answer: Answer | None, *, receipts: bool) -> int:
        status = 0 if answer is None else answer.status
        told = json.loads(answer.body)["decisions"] if answer is not None and status in (200, 202) else ()
        now_s = asyncio.get_running_loop().time()
        body = answer.body if answer is not None and status == 200 else None
        self.history.calls.append(Call(submission, process.name, sent_s, now_s, status, told, body))
        if any(("receipt" in decision) is not receipts for decision in told if decision is not None):
            self.problems.append(f"{process.name} answered with receipts or without, whatever was asked: {receipts=}")
        if status not in (0, 200, 202, 503):
            self.problems.append(f"{process.name} answered {status} to a good submission: {answer}")
        if answer is not None and status in (202, 503) and int(answer.headers.get(b"retry-after", b"0")) < 1:
            self.problems.append(f"{process.name} answered {status} without Retry-After")
        return status

    async def look_up(self, process: Process, id_: str) -> dict[str, Any] | None:
        """What a process says of a transaction now; None for a 404. It is held against the log in the end."""
        answer = await process.call("GET", f"/v1/transactions/{id_}")
        if answer is None or answer.status == 503:
            return {}
        if answer.status == 404:
            return None
        told: dict[str, Any] = json.loads(answer.body)
        self.looked_up.append((process.name, asyncio.get_running_loop().time(), told))
        return told

    async def _look_up(self, draw: random.Random, process: Process, submission: Submission) -> None:
        """What a worker has answered it knows: it says so when it is asked for one transaction (status that never lags)."""
        call = self.history.calls[-1]
        at = draw.randrange(len(submission.ids))
        before = {name: value for name, value in (call.decisions[at] or {}).items() if name != "receipt"}
        told = await self.look_up(process, submission.ids[at])
        if told is None or told not in ({}, before):
            self.problems.append(f"{process.name} answered {before}, and then said {told}")
