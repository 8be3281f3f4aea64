"""One worker's machine: its processes, one after the other, and what outlives them (disk, clock error, network state)."""

from struct import Struct

from tests.simulation.disk import SimulatedDisk
from tests.simulation.process import Process

_NONCE = Struct(">4sIQ")
IDENTITY_BYTES = 8


class Machine:
    """A machine that runs processes of one worker name. `label` differs between machines that share a `name` (duplicate worker names)."""

    def __init__(self, seed: int, label: str, name: str, skew_ms: int) -> None:
        self.label = label
        self.name = name
        self.skew_ms = skew_ms
        self.disk = SimulatedDisk(f"disk {label} of {seed}")
        self.process: Process | None = None
        self.processes = 0
        """The number of processes that have been started here."""
        self.ended = False
        self.down = False
        """True while the supervisor must not start a process here."""
        self.wrong_clock_ms = 0
        """The error of its clock in milliseconds, until it is corrected."""
        self.clock_accepted = False
        """True once its operator has confirmed that its clock is right."""
        self.misnamed = ""
        """The setting in which its configuration names another notary; empty for none."""
        self.needs_disk = False
        """True if its operator gives it a new disk before its next start."""
        self._cut_off = False

    def identity(self) -> bytes:
        """Returns the prefix of all nonces of its next process."""
        return _NONCE.pack(self.label.encode(), self.processes, 0)[:IDENTITY_BYTES]

    def nonce(self, process: int, number: int) -> bytes:
        """Returns a nonce for one of its processes; `number` must be unique among all nonces."""
        return _NONCE.pack(self.label.encode(), process, number)

    @staticmethod
    def read_nonce(nonce: bytes) -> tuple[str, int]:
        """Returns the label of the machine and the number of the process that made this nonce."""
        label, process, _ = _NONCE.unpack(nonce)
        return label.rstrip(b"\0").decode(), process

    @property
    def cut_off(self) -> bool:
        """True while this machine cannot reach the brokers."""
        return self._cut_off

    @cut_off.setter
    def cut_off(self, cut_off: bool) -> None:
        self._cut_off = cut_off
        if self.process is not None:
            self.process.cut_off = cut_off

    def running(self) -> Process | None:
        """Returns the process, or None if none runs."""
        return self.process if self.process is not None and not self.process.dead else None

    def kill(self) -> bool:
        """End the process as a crash would; returns False if none was running."""
        process = self.running()
        if process is None:
            return False
        process.die()
        return True
