"""A request and its transaction id (docs/formats.md, Request).

A client writes states as text in any order; here they are 36 bytes each, in ascending byte order, as the id hashes them and as the index
looks them up. The id covers the notary's name, so the same request at two notaries is two transactions.

    SHA-256("notary/transaction/v1\\n", u16 length, notary name, u32 count, inputs, u32 count, references, i64 from, i64
until, content_hash)

Every worker decodes every request of all others, so this is the hottest decoder of the project. `request_of` first tries a fast path. Its
result is correct whenever it accepts a request; the slow path handles all others, errors included.
"""

from collections.abc import Generator
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import Annotated, Final, TypeAlias

import msgspec

from ordering.errors import Malformed
from ordering.ids import HASH_SCHEMA, INDEX_MAX, STATE_REF_BYTES, STATE_SCHEMA, StateRef, TransactionId, excerpt, parse_hash, parse_state
from payload.strict_json import decode_strictly

INPUTS_AND_REFERENCES_MAX: Final = 10_000
"""The maximum number of inputs and references of one request together."""

TIME_MAX_MS: Final = 2**53 - 1
"""The largest absolute value of a time: every JSON parser reads integers up to it exactly."""

STATES_A_PIECE: Final = 1_000
"""The number of states that are decoded at a time: about a millisecond of work, two where one of them is malformed."""

OPEN_FROM_MS: Final = -(2**63)
OPEN_UNTIL_MS: Final = 2**63 - 1

_ANY_HASH: Final = 64 * "0"
_TRANSACTION_DOMAIN: Final = b"notary/transaction/v1\n"
_NAME_LENGTH = Struct(">H")
_COUNT = Struct(">I")
_WINDOW = Struct(">qq")

Time: TypeAlias = Annotated[
    int, msgspec.Meta(ge=-TIME_MAX_MS, le=TIME_MAX_MS, description="ms since 1970-01-01 UTC", extra_json_schema={"format": "int64"})
]
"""A time in JSON. Without the format, generated clients would use 32 bits."""
_States: TypeAlias = Annotated[
    tuple[Annotated[str, msgspec.Meta(extra_json_schema=STATE_SCHEMA)], ...], msgspec.Meta(extra_json_schema={"uniqueItems": True})
]


class Request(msgspec.Struct, frozen=True, gc=False):
    """One client request. `from_ms <= log time < until_ms`; an open end is the least or the greatest i64."""

    transaction_id: TransactionId
    inputs: tuple[StateRef, ...]
    """Ascending, without repetition."""
    references: tuple[StateRef, ...]
    """Ascending, without repetition; a state may be an input too."""
    from_ms: int
    until_ms: int
    content_hash: bytes


class WindowJson(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The time window in JSON. At least one end is a time, and null is an open end. If both are times, `from` is less than `until`."""

    from_: Time | None = msgspec.field(name="from")
    until: Time | None = msgspec.field()


class RequestJson(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request in JSON, members in the contract's order. Encoding leaves out empty members and nothing else."""

    inputs: _States = ()
    references: _States = ()
    time_window: WindowJson | msgspec.UnsetType = msgspec.UNSET
    content_hash: Annotated[str, msgspec.Meta(description="stands for everything else in the transaction", extra_json_schema=HASH_SCHEMA)]


_decode_request = msgspec.json.Decoder(RequestJson).decode


def decode_request(body: bytes, notary_name: str) -> Request:
    """Decodes one JSON object into a request. Raises `Malformed` for anything else, never another exception."""
    return request_of(decode_strictly(_decode_request, body), transaction_prefix(notary_name))


@lru_cache(maxsize=16)
def transaction_prefix(notary_name: str) -> bytes:
    """Returns the bytes that come first in the hash of each of one notary's ids. The configuration limits the name to 255 bytes."""
    name = notary_name.encode()
    return _TRANSACTION_DOMAIN + _NAME_LENGTH.pack(len(name)) + name


def request_of(wire: RequestJson, prefix: bytes) -> Request:
    """Returns the request in `wire`, with its id. Raises `Malformed`, with the path within the request, if it breaks the contract."""
    window = _window(wire)
    states = _states_quickly(wire.inputs, wire.references, wire.content_hash) or (
        _states_plainly(wire.inputs, "inputs"),
        _states_plainly(wire.references, "references"),
        parse_hash(wire.content_hash, "content_hash"),
    )
    return _with_id(wire, prefix, window, *states)


def request_in_pieces(wire: RequestJson, prefix: bytes) -> Generator[None, None, Request]:
    """Does the work of `request_of`, `STATES_A_PIECE` states at a time: a large request would block an event loop for too long."""
    window = _window(wire)
    inputs: list[StateRef] = []
    references: list[StateRef] = []
    for member, refs, states in (("inputs", wire.inputs, inputs), ("references", wire.references, references)):
        for at in range(0, len(refs), STATES_A_PIECE):
            piece = refs[at : at + STATES_A_PIECE]
            found = _states_quickly(piece, (), _ANY_HASH)
            # Each piece is sorted by itself, which leaves little work for the end.
            states += sorted(_states_plainly(piece, member, at) if found is None else found[0])
            yield
    return _with_id(wire, prefix, window, inputs, references, parse_hash(wire.content_hash, "content_hash"))


def _window(wire: RequestJson) -> tuple[int, int]:
    """Returns the ends of the time window. Raises `Malformed` for a request that has none of the three members, or too many states."""
    window = wire.time_window
    if window is msgspec.UNSET:
        ends = OPEN_FROM_MS, OPEN_UNTIL_MS
        if not wire.inputs and not wire.references:
            raise Malformed("has no inputs, references or time_window; give at least one")
    else:
        ends = _ends(window)
    if len(wire.inputs) + len(wire.references) > INPUTS_AND_REFERENCES_MAX:
        raise Malformed(
            f"{len(wire.inputs)} inputs and {len(wire.references)} references, at most {INPUTS_AND_REFERENCES_MAX} together; "
            "split the transaction"
        )
    return ends


def _with_id(
    wire: RequestJson, prefix: bytes, window: tuple[int, int], inputs: list[StateRef], references: list[StateRef], content_hash: bytes
) -> Request:
    if len(inputs) > 1:
        inputs.sort()
        if len(set(inputs)) != len(inputs):
            raise _twice(wire.inputs, "inputs")
    if len(references) > 1:
        references.sort()
        if len(set(references)) != len(references):
            raise _twice(wire.references, "references")
    transaction_id = sha256(
        b"".join(
            (
                prefix,
                _COUNT.pack(len(inputs)),
                *inputs,
                _COUNT.pack(len(references)),
                *references,
                _WINDOW.pack(*window),
                content_hash,
            )
        )
    ).digest()
    return Request(transaction_id, tuple(inputs), tuple(references), *window, content_hash)


def _ends(window: WindowJson) -> tuple[int, int]:
    if window.from_ is None and window.until is None:
        raise Malformed("both ends are null; give at least one, or leave time_window out", "time_window")
    from_ms = OPEN_FROM_MS if window.from_ is None else window.from_
    until_ms = OPEN_UNTIL_MS if window.until is None else window.until
    if from_ms >= until_ms:
        raise Malformed(f"from {from_ms} is not before until {until_ms}; no time is in this window", "time_window")
    return from_ms, until_ms


class _Suffixes(dict[str, str]):
    """Maps `:<decimal index>` of a state reference to the index as 8 hex digits. Small indexes are cached, others computed each time."""

    def __missing__(self, suffix: str) -> str:
        """Compute the hex digits of one suffix. Raises `ValueError`, like `bytes.fromhex`, for a malformed one."""
        index = int(suffix[1:])
        # `int` accepts signs, white space, underscores and the digits of other scripts; only the canonical text is reproduced exactly.
        if index > INDEX_MAX or f":{index}" != suffix:
            raise ValueError("not the suffix of a state reference")
        return f"{index:08x}"


_SUFFIXES = _Suffixes({f":{index}": f"{index:08x}" for index in range(256)})


def _states_quickly(
    inputs: tuple[str, ...], references: tuple[str, ...], content_hash: str
) -> tuple[list[StateRef], list[StateRef], bytes] | None:
    """Decodes inputs, references and content hash with one `fromhex`, or returns None where the slow path must decide.

    `fromhex` is more lenient than the contract: it accepts capitals and white space. Encoding the bytes as hex again and comparing the text
    excludes both. Each id has its own 64 digits, in front of its suffix; the length then leaves 64 for the hash.
    """
    try:
        text = "".join([ref[:64] + _SUFFIXES[ref[64:]] for ref in inputs + references]) + content_hash
        octets = bytes.fromhex(text)
    except ValueError:
        return None
    states_end = (len(inputs) + len(references)) * STATE_REF_BYTES
    if octets.hex() != text or len(octets) != states_end + 32:
        return None
    inputs_end = len(inputs) * STATE_REF_BYTES
    return (
        [octets[at : at + STATE_REF_BYTES] for at in range(0, inputs_end, STATE_REF_BYTES)],
        [octets[at : at + STATE_REF_BYTES] for at in range(inputs_end, states_end, STATE_REF_BYTES)],
        octets[states_end:],
    )


def _states_plainly(refs: tuple[str, ...], member: str, first: int = 0) -> list[StateRef]:
    """Decodes states value by value. It defines the correct result of the fast path, and names the field of an error.

    `first` is the index of the first of `refs` in `member`.
    """
    return [parse_state(ref, f"{member}[{at}]") for at, ref in enumerate(refs, first)]


def _twice(refs: tuple[str, ...], member: str) -> Malformed:
    seen: dict[str, int] = {}
    for at, ref in enumerate(refs):
        if (first := seen.setdefault(ref, at)) != at:
            return Malformed(f"{excerpt(ref)} is already in {member}[{first}]; give each state once", f"{member}[{at}]")
    raise AssertionError("two states are equal only if their texts are")
