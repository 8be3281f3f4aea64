"""Submissions generated ahead, in an unnamed file: a soak of hours does not fit in memory, and sequential reads are cheap."""

import struct
import tempfile
from types import TracebackType
from typing import IO, Self

import msgspec

from loadtest.openloop.generate import PlannedSubmission

_LENGTH = struct.Struct(">I")


class Pool:
    """A queue that is first filled, then emptied, in order. The file disappears when it is closed, or with the process."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(buffering=1 << 20)  # noqa: SIM115 - `close` closes it
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(PlannedSubmission).decode
        self.bytes = 0

    def add(self, asked: PlannedSubmission) -> None:
        """Append a submission."""
        record = self._encode(asked)
        self._file.write(_LENGTH.pack(len(record)))
        self._file.write(record)
        self.bytes += len(record)

    def rewind(self) -> None:
        """Switch from filling to taking."""
        self._file.seek(0)

    def take(self) -> PlannedSubmission:
        """Returns the next submission; there must be one."""
        (length,) = _LENGTH.unpack(self._file.read(_LENGTH.size))
        return self._decode(self._file.read(length))

    def close(self) -> None:
        """Delete the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
