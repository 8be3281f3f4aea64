"""Problem documents (RFC 9457): one table from our errors to status, name and title."""

from typing import Annotated, Final
from urllib.parse import quote

import msgspec

from notary.gate import BadSignature, TooLarge, UnknownParty, UnsupportedMediaType
from notary.quota import QuotaExceeded
from ordering.errors import Malformed, NotaryError, NotReady, Overloaded
from payload.signed_read import SIGNED_COMPONENTS

CONTENT_TYPE: Final = b"application/problem+json"


class NotFound(NotaryError):
    """The resource does not exist, or not yet. `applied`: the number of decisions that this worker has."""

    def __init__(self, what: str, applied: int | None = None) -> None:
        self.applied = applied
        super().__init__(what)


class NotAParty(NotaryError):
    """Only registered parties may make this call, and it does not prove that a party makes it."""

    def __init__(self, why: str, notary_name: str) -> None:
        self.notary = quote(notary_name, safe="")
        super().__init__(
            f"{why}: sign the call with a registered party's key, or show that key's certificate in the TLS handshake: see docs/http.md,"
            " 'Access to reads'"
        )


class MethodNotAllowed(NotaryError):
    """The path exists, but not for this method."""

    def __init__(self, what: str, allow: str) -> None:
        self.allow = allow
        super().__init__(what)


_TABLE: Final[dict[type[NotaryError], tuple[int, str, str]]] = {
    Malformed: (400, "malformed", "The call breaks the format"),
    UnknownParty: (401, "unknown-party", "The party is not registered"),
    NotAParty: (401, "not-a-party", "Only parties may read this"),
    BadSignature: (403, "bad-signature", "The signature does not verify"),
    NotFound: (404, "not-found", "Nothing is known under this address"),
    MethodNotAllowed: (405, "method-not-allowed", "This address answers other methods"),
    TooLarge: (413, "too-large", "The body is too large"),
    UnsupportedMediaType: (415, "unsupported-media-type", "The body is not JSON"),
    QuotaExceeded: (429, "quota-exceeded", "The party's quota is used up"),
    Overloaded: (503, "overloaded", "Too much is waiting already"),
    NotReady: (503, "not-ready", "This worker cannot decide now"),
}
NAMES: Final = tuple(name for _, name, _ in _TABLE.values())


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem document. `where` names the place in the body, for `malformed`; `applied` is for `not-found`."""

    type: Annotated[str, msgspec.Meta(extra_json_schema={"enum": [f"/problems/{name}" for name in NAMES]})]
    title: str
    status: int
    detail: str
    where: Annotated[str, msgspec.Meta(description="the place in the body, such as requests[3].inputs[0]")] = ""
    applied: Annotated[int, msgspec.Meta(description="how many decisions this worker has, where that is why it knows of none")] | None = (
        None
    )


def problem_of(error: NotaryError) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Returns (status, headers, body) for an error. Raises `KeyError` for one that is not in the table, which is a bug.

    The error loses its traceback. A frame there may have the error and the client's bytes in variables. Such a cycle of references stays in
    memory until the garbage collector runs.
    """
    status, name, title = _TABLE[type(error)]
    error.__traceback__ = error.__context__ = None
    headers = [(b"content-type", CONTENT_TYPE)]
    where = error.where if isinstance(error, Malformed) else ""
    applied = error.applied if isinstance(error, NotFound) else None
    if isinstance(error, QuotaExceeded | Overloaded | NotReady):
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    if isinstance(error, QuotaExceeded | Overloaded) and error.ticket:
        headers.append((b"ticket", error.ticket))
    if isinstance(error, NotFound):
        headers.append((b"cache-control", b"no-store"))  # most tiles and decisions that are missing now will exist later
    if isinstance(error, NotAParty):
        headers += [
            (b"www-authenticate", b'Signature realm="%b"' % error.notary.encode()),
            (b"accept-signature", b'sig=(%b);created;keyid;tag="%b"' % (SIGNED_COMPONENTS.encode(), error.notary.encode())),
            (b"cache-control", b"no-store"),
        ]
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    return status, headers, msgspec.json.encode(Problem(f"/problems/{name}", title, status, str(error), where, applied))
