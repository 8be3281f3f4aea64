"""`Centres`: makes some data centres, and controls the lines between them."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import NoReturn, Self

import orjson

from deploy.centres.device import address
from deploy.local.errors import CannotRun
from deploy.local.process import python_path


class Centres:
    """Some data centres, numbered from 1 on, with a delay of `delay_ms` each way between any two. They exist inside its `with` block.

    Every method may be called from any thread. On failure it raises CannotRun with a remedy.
    """

    def __init__(self, count: int = 3, *, delay_ms: float = 0.0) -> None:
        self.numbers = tuple(range(1, count + 1))
        self._delay_ms = delay_ms
        self._forwarder: subprocess.Popen[str] | None = None
        self._networks: list[str] = []
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> Self:
        self._forwarder = subprocess.Popen(
            [sys.executable, "-P", "-m", "deploy.centres.forward", str(len(self.numbers))],
            env=os.environ | {"PYTHONPATH": python_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must not reach the forwarder: it ends the block, and the block ends the forwarder
        )
        assert self._forwarder.stdout is not None
        try:
            self._networks = orjson.loads(self._forwarder.stdout.readline() or self._gone())["networks"]
            self.slow(self._delay_ms)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._forwarder is not None:
            self._forwarder.communicate()  # closes its stdin, which ends it
            self._forwarder = None

    def host(self, number: int) -> str:
        """Returns the IPv4 address of a centre, on which all servers in it listen."""
        return address(number)

    def network(self, number: int) -> str:
        """Returns the path of a centre's network namespace, for `deploy.namespace.inside` and `BrokerNetwork`."""
        return self._networks[number - 1]

    def slow(self, delay_ms: float, jitter_ms: float = 0.0, loss: float = 0.0) -> None:
        """Set the delay, the jitter (the most that is added to it) and the loss (share of packets, 0 to 1) of every line."""
        for source, target in self._pairs():
            self._ask(f"line {source} {target} delay_ms={delay_ms} jitter_ms={jitter_ms} loss={loss}")

    def cut(self, source: int, target: int) -> None:
        """Drop all packets from `source` to `target`. The other direction stays as it is."""
        self._ask(f"line {source} {target} cut=1")

    def cut_off(self, number: int, *, outgoing: bool = True, incoming: bool = True) -> list[tuple[int, int]]:
        """Cut a centre's lines to all others, from all others, or both. Return these lines, as (from, to)."""
        lines = [(source, target) for source, target in self._pairs() if (outgoing and source == number) or (incoming and target == number)]
        for source, target in lines:
            self.cut(source, target)
        return lines

    def heal(self, lines: Iterable[tuple[int, int]] | None = None) -> None:
        """End the cut of these lines, or of all. Delays and losses stay."""
        for source, target in self._pairs() if lines is None else lines:
            self._ask(f"line {source} {target} cut=0")

    def counts(self) -> Mapping[tuple[int, int], Mapping[str, int]]:
        """Returns `packets` and `bytes` delivered and packets `lost`, by (from, to)."""
        counts: dict[str, dict[str, int]] = orjson.loads(self._ask("counts"))
        return {(int(pair[0]), int(pair[2])): of_line for pair, of_line in counts.items()}

    def _pairs(self) -> list[tuple[int, int]]:
        return [(source, target) for source in self.numbers for target in self.numbers if source != target]

    def _ask(self, command: str) -> str:
        forwarder = self._forwarder
        if forwarder is None:
            raise CannotRun("these centres exist only inside their `with` block: enter it first")
        assert forwarder.stdin is not None
        assert forwarder.stdout is not None
        with self._one_at_a_time:
            try:
                forwarder.stdin.write(command + "\n")
                forwarder.stdin.flush()
            except BrokenPipeError:
                self._gone()
            answer = forwarder.stdout.readline().strip() or self._gone()
        if answer != "ok" and not answer.startswith("{"):
            raise CannotRun(answer)
        return answer

    def _gone(self) -> NoReturn:
        assert self._forwarder is not None
        assert self._forwarder.stderr is not None
        raise CannotRun(f"the forwarder between the centres has ended:\n{self._forwarder.stderr.read().strip()}")
