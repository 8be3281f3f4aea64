"""Readers during the faults: a monitor that fetches checkpoints and tiles, and clients that fetch receipts and states.

No plan has them whose log loses records or whose consumed states are changed. A worker does not return a changed decision.
"""

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.checkers.history import Decided, History
from tests.checkers.precedence import hashed
from tests.checkers.replay import Replayed
from tests.checkers.tree import TILE_WIDTH, leaf_of
from tests.simulation.calls import Calls
from tests.simulation.plan import Plan
from tests.simulation.process import Answer, Process


class Readings:
    """All answers to the readers of one simulation."""

    def __init__(self, plan: Plan, calls: Calls, history: History, processes: Callable[[], Sequence[Process]]) -> None:
        self._plan = plan
        self._calls = calls
        self._history = history
        self._processes = processes
        self._draw = random.Random(f"readings {plan.seed}")
        self.notes: list[str] = []
        """The checkpoints that were fetched."""
        self.receipts: list[Decided] = []
        """Decisions with receipts that were fetched separately."""
        self._tiles: list[tuple[str, int | None, int, int, bytes]] = []  # path, level (None: entries), index, width, content
        self._states: list[dict[str, Any]] = []

    async def run(self) -> None:
        """Run all readings, each at its time."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._plan.readings):
                tasks.create_task(self._read(self._draw.uniform(0, self._plan.faults_s)))

    async def _read(self, at_s: float) -> None:
        await asyncio.sleep(at_s)
        processes = self._processes()
        if not processes:
            return
        process = self._draw.choice(processes)
        returned = list(self._calls.returned.get(process, {}).values())
        if not returned or self._draw.random() < 0.4:
            await self._mirror(process)
        elif self._draw.random() < 0.5:
            decision = self._draw.choice(returned)[1]
            if (body := await self._get(process, f"/v1/transactions/{decision['transaction_id']}/receipt")) is not None:
                self.receipts.append({**decision, "receipt": body.decode()})
        else:
            await self._ask_for_state(process, self._draw.choice(returned)[1])

    def violations(self, replayed: Replayed) -> Iterator[str]:
        """Yields the tiles and states that differ from the log. Another checker examines checkpoints and receipts."""
        for path, level, index, width, content in self._tiles:
            first = index * TILE_WIDTH
            if level is None:
                leaves = [leaf_of(decision) for decision in replayed.decisions[first : first + width]]
                wanted = b"".join([len(leaf).to_bytes(2, "big") + leaf for leaf in leaves])
            else:
                span = TILE_WIDTH**level
                wanted = b"".join([replayed.tree.over(at * span, (at + 1) * span) for at in range(first, first + width)])
            if content != wanted:
                yield f"{path} is not the tree's"
        for returned in self._states:
            id_, position = replayed.consumed.get(returned["state"], ("", None))
            if returned["consumed_by"] is not None and (returned["consumed_by"], returned["position"]) != (hashed(id_), position):
                yield f"{returned}: the log has {id_} at {position}"

    async def _get(self, process: Process, path: str) -> bytes | None:
        """Returns the body, None if the process is gone or does not answer now."""
        answer: Answer | None = await self._calls.call(process, "GET", path)
        if answer is None or answer.status == 503:
            return None
        if answer.status != 200:
            self._calls.problem(process, f"answered {answer.status} when it was asked for {path}: {answer}")
            return None
        return answer.body

    async def _mirror(self, process: Process) -> None:
        """Fetch a checkpoint and all its tiles from the same process, which must have them all."""
        note = await self._get(process, self._draw.choice(["/checkpoint", "/v1/checkpoint"]))
        if note is None:
            return
        self.notes.append(note.decode())
        level: int | None
        count = int(note.split(b"\n")[1])
        for level in (None, 0, 1):
            there = count >> 8 if level == 1 else count
            for index in range(-(-there // TILE_WIDTH)):
                width = min(TILE_WIDTH, there - index * TILE_WIDTH)
                path = f"/tile/{'entries' if level is None else level}/{index:03}{'' if width == TILE_WIDTH else f'.p/{width}'}"
                content = await self._get(process, path)
                if content is not None:
                    self._tiles.append((path, level, index, width, content))

    async def _ask_for_state(self, process: Process, decision: Decided) -> None:
        """Fetch the inputs of a decision that this process has returned: a committed transaction must have consumed them."""
        requests = {id_: request for each in self._history.submissions for id_, request in zip(each.ids, each.requests, strict=True)}
        for state in requests.get(decision["transaction_id"], {}).get("inputs", ()):
            body = await self._get(process, f"/v1/states/{state}")
            if body is None:
                continue
            returned = json.loads(body)
            self._states.append(returned)
            if returned["consumed_by"] is None and decision["outcome"] == "committed":
                self._calls.problem(process, f"{state} is not consumed, it says, after it returned {decision}")
