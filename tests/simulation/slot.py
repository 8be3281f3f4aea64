"""A place for processes of one name, one after the other, with what outlives them: the disk, the clock's error, the network's mood."""

from struct import Struct

from tests.simulation.disk import SimulatedDisk
from tests.simulation.process import Process

_NONCE = Struct(">4sIQ")
IDENTITY_BYTES = 8


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
        self.down = False
        """Whether no process of it starts now."""
        self.wrong_clock_ms = 0
        """How far its clock is wrong until somebody sets it."""
        self.clock_accepted = False
        """Whether its operator has said that its clock is right."""
        self.misnamed = ""
        """The setting in which its configuration names another notary; empty for none."""
        self.needs_disk = False
        """Whether its operator gives it a new disk before its next start."""
        self._cut_off = False

    def identity(self) -> bytes:
        """What all nonces of its next process begin with."""
        return _NONCE.pack(self.label.encode(), self.processes, 0)[:IDENTITY_BYTES]

    def nonce(self, process: int, number: int) -> bytes:
        """A nonce for one of its processes; `number` is one that no other nonce has."""
        return _NONCE.pack(self.label.encode(), process, number)

    @staticmethod
    def read_nonce(nonce: bytes) -> tuple[str, int]:
        """Of which slot it is, and of which of its processes."""
        label, process, _ = _NONCE.unpack(nonce)
        return label.rstrip(b"\0").decode(), process

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
