"""The messages between a worker and its acceptor processes. Both have the same version: the worker starts the processes."""

from typing import TypeAlias

import msgspec

from notary.bodies import ANY_CLIENT, Payer
from notary.http.call import Answer
from notary.http.settings import HttpSettings
from notary.http.submission import AnswerForm
from notary.tls import TlsFiles
from payload import Submission


class AcceptorSettings(msgspec.Struct, frozen=True):
    """The settings of an acceptor process, as JSON on its command line."""

    process: str
    """Its name: the worker's, and its number."""
    notary_name: str
    parties_file: str
    http: HttpSettings
    """Its limits of connections are those of this one process."""
    bytes_max: int
    """The bytes of bodies that it may hold at one time."""
    log_level: str
    log_json: bool
    tls: TlsFiles | None = None


# ---- from an acceptor process ----


class Serving(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=1):
    """The process accepts connections. It is sent once it does, and as the answer to `Ping`."""


class Submitted(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """A submission of a known party, with a good signature."""

    number: int
    """The number of the call; the process counts its calls."""
    since_s: float
    """The time at which its head came, by `time.perf_counter`, which is one clock for all processes of a machine."""
    form: AnswerForm
    submission: Submission
    """The decoded submission; its `encoded` goes into the log."""
    payer: Payer = ANY_CLIENT
    """The client that its bytes count for."""


class LookupCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=3):
    """Any other call. No such call has a body, and none needs its headers."""

    number: int
    method: str
    path: str
    query: bytes
    network: str
    """The client's address (`Call.network`)."""
    may_read: bool
    """True if the acceptor process has checked that a party makes the call."""


class AnswerCounts(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=4):
    """Calls that the process has answered by itself."""

    call: str
    status: int
    count: int
    seconds: tuple[float, ...]
    """The durations of those calls that its gate checked; the others were rejected without being read."""


class HandshakesFailed(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=5):
    """Connections that ended before their first request."""

    count: int


class ClientLeft(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=6):
    """The client of a call has left: the call ends."""

    number: int
    half: bool = False
    """True if it has only closed its half of the connection: a long poll ends, and is answered."""


# ---- from the worker ----


class Answered(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=1):
    """The answer to the call of that number."""

    number: int
    answer: Answer
    party: str = ""
    """The party of its submission, if this was admitted and new; else empty."""


class AdmissionState(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """The state of the worker's gate from now on."""

    rejection: Answer | None
    """The answer to every submission, which is then not read; None: submissions are read."""
    ends: bool = False
    """True if that is permanent: the process does not wait for incomplete bodies."""
    full: tuple[str, int] | None = None
    """The reason why all submissions without a ticket are rejected, and the seconds to wait."""
    full_parties: dict[str, int] = {}
    """The parties that are rejected, each with the seconds to wait."""
    behind: bool = False
    """True while decided submissions wait for their answers (`AnswerBacklog`): the process decodes nothing."""
    ticket_key: bytes = b""
    """The worker's key for tickets."""


class End(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=3):
    """Accept no more connections, send the pending answers, and end."""

    seconds_max: float


class ReadAgain(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=4):
    """Read certificates and parties again, and log from this level on."""

    log_level: str


class Ping(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=5):
    """Answer `Serving`: a process that hangs does not."""


Up: TypeAlias = Serving | Submitted | LookupCall | AnswerCounts | HandshakesFailed | ClientLeft
Down: TypeAlias = Answered | AdmissionState | End | ReadAgain | Ping
