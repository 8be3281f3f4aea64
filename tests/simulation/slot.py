"""A place for processes of one name, one after the other, with what outlives them: the disk, the clock's error, the network's mood."""

from tests.simulation.disk import SimulatedDisk
from tests.simulation.process import Process


class Slot:
    """`label` tells namesakes apart, which share a `name`."""

    def __init__(self, seed: int, label: str, name: str, skew_ms: int) -> None:
        self.label = label
        self.name = name
        self.skew_ms = skew_ms
        self.disk = SimulatedDisk(f"disk {label} of {seed}")
        self.process: Process | None = None
        self.processes = 0
        """How many there have been."""
        self.ended = False
        self._cut_off = False

    @property
    def cut_off(self) -> bool:
        """Whether this machine cannot reach the brokers."""
        return self._cut_off

    @cut_off.setter
    def cut_off(self, cut_off: bool) -> None:
        self._cut_off = cut_off
        if self.process is not None:
            self.process.cut_off = cut_off

    def running(self) -> Process | None:
        """The process, if it runs."""
        return self.process if self.process is not None and not self.process.dead else None

    def kill(self) -> bool:
        """End the process as a crash would; whether there was one."""
        process = self.running()
        if process is None:
            return False
        process.die()
        return True
