"""What a worker and its intake processes say to each other. Both are of one version: the worker starts them."""

from typing import TypeAlias

import msgspec

from notary.http.call import Answer
from notary.http.settings import HttpSettings
from notary.http.submission import Asked
from notary.tls import TlsFiles
from payload import Submission


class AcceptorSettings(msgspec.Struct, frozen=True):
    """What an intake process is started with, as JSON on its command line."""

    process: str
    """Its name: the worker's, and its number."""
    notary_name: str
    parties_file: str
    http: HttpSettings
    """Its connections are those of this process."""
    bytes_max: int
    """Of the bodies that it reads at a time."""
    log_level: str
    log_json: bool
    tls: TlsFiles | None = None


# ---- from an intake process ----


class Serving(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=1):
    """It takes connections."""


class Submitted(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """A submission of a known party, its signature a good one."""

    number: int
    """Of the call; the process counts them."""
    since_s: float
    """When its head came, by `time.perf_counter`, which is one clock for all processes of a machine."""
    asked: Asked
    submission: Submission
    """Decoded; its `encoded` is what goes into the log."""


class Called(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=3):
    """Any other call. None of them looks at its headers or has a body."""

    number: int
    method: str
    path: str
    query: bytes
    may_read: bool
    """True if the intake process has checked that it is a party's."""


class Counted(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=4):
    """Calls that the process has answered by itself."""

    call: str
    status: int
    count: int
    seconds: tuple[float, ...]
    """How long those took that were read."""


class HandshakesFailed(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=5):
    """Connections that ended before their first request."""

    count: int


# ---- from the worker ----


class Answered(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=1):
    """The answer to the call of that number."""

    number: int
    answer: Answer


class Taking(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """The state of the worker's gate from now on."""

    refusal: Answer | None
    """The answer to every submission, which is not read then; None: they are read."""
    ends: bool = False
    """Whether that is for ever: bodies that are only half here are not waited for."""
    full: tuple[str, int] | None = None
    """The reason why there is no room for anybody without a ticket, and the seconds to wait."""
    full_parties: dict[str, int] = {}
    """The parties that have none, and the same for them."""
    ticket_key: bytes = b""
    """The worker's, of tickets."""


class End(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=3):
    """Take no more connections, let the answers on their way leave, end."""

    seconds_max: float


class ReadAgain(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=4):
    """Read certificates and parties again, and log from this level on."""

    log_level: str


Up: TypeAlias = Serving | Submitted | Called | Counted | HandshakesFailed
Down: TypeAlias = Answered | Taking | End | ReadAgain
