"""A client that retries until it has its decisions, and a load of many clients."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from tests.checkers.history import Call, Decided, History, Submission
from tests.clients.http import Answer, Http
from tests.clients.party import Party, spend, state

PAUSE_S = 0.04
ASKED_FOR_RECEIPTS = 0.5


class Client:
    """A client that records its submissions and their answers."""

    def __init__(self, http: Http, history: History, wait_s: int = 2) -> None:
        self.http = http
        self.history = history
        self._wait_s = wait_s
        self._draw = random.Random(0)

    async def ask(self, url: str, submission: Submission, *, receipts: bool = False) -> Answer:
        """Submit once, with receipts or without. Raises `ConnectionError`."""
        self.history.submissions.append(submission)
        sent_s = time.monotonic()
        headers = {"prefer": f"wait={self._wait_s}"}
        try:
            path = f"/v1/submissions{'' if receipts else '?receipts=false'}"
            answer = await self.http.call(url, "POST", path, submission.body, headers)
        except (ConnectionError, asyncio.CancelledError):
            self.history.calls.append(Call(submission, url, sent_s, time.monotonic(), 0, ()))
            raise
        decisions = answer.json()["decisions"] if answer.status in (200, 202) else ()
        body = answer.body if decisions else None
        self.history.calls.append(Call(submission, url, sent_s, time.monotonic(), answer.status, decisions, body))
        for decision in decisions:
            assert decision is None or ("receipt" in decision) is receipts, f"{receipts=} was asked for: {decision}"
        return answer

    async def answered(self, url: str, submission: Submission) -> Answer:
        """Submit to this worker, and again while an answer comes before the decisions; returns the answer that has them."""
        while (answer := await self.ask(url, submission)).status == 202:
            pass
        return answer

    async def ask_until_broken(self, url: str, submission: Submission) -> None:
        """Submit to this worker until its process dies. Fails if there is a decision before that."""
        while True:
            try:
                answer = await self.ask(url, submission)
            except ConnectionError:
                return
            assert answer.status in (202, 503), answer
            assert answer.status == 503 or not any(answer.json()["decisions"])

    async def decide(self, urls: Sequence[str], submission: Submission) -> list[Decided]:
        """Submit to one worker after the other until all of it is decided; half of the calls request receipts.

        Returns the decisions without receipts. Only the test's time limit bounds it.
        """
        while True:
            for url in urls:
                try:
                    answer = await self.ask(url, submission, receipts=self._draw.random() < ASKED_FOR_RECEIPTS)
                except ConnectionError:
                    await asyncio.sleep(0.05)
                    continue
                if answer.status == 200:
                    return [
                        {name: value for name, value in decision.items() if name != "receipt"} for decision in answer.json()["decisions"]
                    ]
                # 202: not decided yet; 503: not ready. Anything else is a bug.
                assert answer.status in (202, 503), answer
                assert int(answer.headers["retry-after"]) >= 1
                await asyncio.sleep(0.05)


class Load:
    """Clients that submit all the time, each to random workers: mostly new states, often consumed ones, sometimes a repeated submission."""

    def __init__(self, client: Client, party: Party, urls: Sequence[str], *, seed: int, clients: int = 16) -> None:
        self._client = client
        self._party = party
        self._urls = urls
        self._random = random.Random(seed)
        self._clients = clients
        self._seed = seed
        self._states: list[str] = []
        self._before: list[Submission] = []
        self._stop = False
        self.decided = 0

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._keep_asking()) for _ in range(self._clients)]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop the clients after each has the outcome of its last submission."""
        self._stop = True
        if kind is not None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        else:
            await asyncio.gather(*self._tasks)

    async def until(self, more: int) -> None:
        """Wait until that many more submissions have been decided."""
        goal = self.decided + more
        await until(lambda: self.decided >= goal or any(task.done() for task in self._tasks))
        for task in self._tasks:
            if task.done():
                task.result()

    async def _keep_asking(self) -> None:
        while not self._stop:
            urls = self._random.sample(list(self._urls), len(self._urls))
            await self._client.decide(urls, self._next())
            self.decided += 1
            await asyncio.sleep(PAUSE_S)

    def _next(self) -> Submission:
        chance = self._random.random
        if self._before and chance() < 0.1:
            return self._random.choice(self._before[-200:])
        requests = []
        for _ in range(self._random.randint(1, 3)):
            number = len(self._states)
            fresh = [state(f"{self._seed}/{number}", index) for index in range(self._random.randint(1, 3))]
            inputs = [*fresh, self._random.choice(self._states[-300:])] if self._states and chance() < 0.3 else fresh
            self._states += fresh
            request = spend(*dict.fromkeys(inputs), content=f"{self._seed}/{number}")
            if chance() < 0.1:
                request["references"] = [self._random.choice(self._states)]
            if chance() < 0.1:
                request["time_window"] = {"from": None, "until": time.time_ns() // 1_000_000 + self._random.randint(-500, 500)}
            requests.append(request)
        submission = self._party.submission(*requests)
        self._before.append(submission)
        return submission


async def until(condition: Callable[[], bool | Awaitable[bool]], pause_s: float = 0.02) -> None:
    """Wait until the condition holds; only the test's time limit bounds it."""
    while True:
        met = condition()
        if met if isinstance(met, bool) else await met:
            return
        await asyncio.sleep(pause_s)
