"""JSON from outside, read strictly: a value of the declared type, or `Malformed` that names the place, never another
exception.

What the grammar of RFC 8259 leaves open is settled here and in the types that callers pass in, so that no two workers read
one body differently: UTF-8 without a byte order mark, no lone surrogates, unknown members refused
(`forbid_unknown_fields`), integers without fraction or exponent, and the last of members with one name counts (an earlier
one of the wrong type is refused all the same).

msgspec checks all of that while it parses, and says where in its own words: "Expected `str`, got `int` - at
`$.requests[3].inputs[0]`". This module maps its errors, once, to the words of the contract.
"""

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from ordering.errors import Malformed
from ordering.ids import excerpt

T = TypeVar("T")

# The place stands last. Only an unknown member's name is the sender's own text in such a message; one made to look like a place
# misleads nobody but its sender, about a body that is refused either way.
_PLACE = re.compile(r"(.*) - at `\$([A-Za-z_.0-9\[\]]*)`", re.DOTALL).fullmatch
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL).fullmatch
_MISSING = re.compile(r"Object missing required field `(\w+)`").fullmatch
_BYTE = re.compile(r"(.*) \(byte (\d+)\)", re.DOTALL).fullmatch

# Python's names of types mean nothing to a client that is written in another language.
_JSON_NAMES: Final = {
    "`str`": "a string",
    "`int`": "an integer",
    "`int | null`": "an integer or null",
    "`float`": "a number with a fraction or an exponent",
    "`bool`": "a boolean",
    "`object`": "an object",
    "`array`": "an array",
    "`null`": "null",
}
_TYPE = re.compile(r"`[a-z |]+`")


def decode_strictly(decode: Callable[[bytes], T], body: bytes) -> T:
    """What `decode` (of a typed `msgspec.json.Decoder`) makes of `body`; `Malformed` with the place in the body otherwise."""
    try:
        return decode(body)
    except msgspec.ValidationError as problem:
        malformed = _mismatch(str(problem))
    except UnicodeDecodeError as problem:
        malformed = Malformed(f"not UTF-8: {problem.reason}, byte {problem.object[problem.start]:#04x}; send JSON in UTF-8")
    except msgspec.DecodeError as problem:
        malformed = _broken(str(problem), body)
    except (ValueError, OverflowError, RecursionError) as problem:
        # Not seen with the types of this room. What a huge number or a deep nest ends in is msgspec's affair, not the caller's.
        malformed = Malformed(f"not JSON that can be read: {excerpt(str(problem))}")
    raise malformed


def within(outer: str, problem: Malformed) -> Malformed:
    """The same problem, as seen from outside: `inputs[0]` within `requests[3]` is `requests[3].inputs[0]`."""
    if not problem.where:
        return Malformed(problem.what, outer)
    separator = "" if problem.where.startswith("[") or not outer else "."
    return Malformed(problem.what, f"{outer}{separator}{problem.where}")


def _mismatch(message: str) -> Malformed:
    place = _PLACE(message)
    what, where = (place[1], place[2].removeprefix(".")) if place else (message, "")
    if unknown := _UNKNOWN(what):
        return Malformed(f"unknown member {excerpt(unknown[1])}; leave it out or correct its name", where)
    if missing := _MISSING(what):
        return Malformed("missing; this member must be given", f"{where}.{missing[1]}" if where else missing[1])
    what = _TYPE.sub(lambda found: _JSON_NAMES.get(found[0], found[0]), what[:1].lower() + what[1:])
    if what.endswith(", got null"):
        what += "; leave the member out when there is nothing to say" if where.endswith(_OPTIONAL) else "; give a value"
    return Malformed(what, where)


_OPTIONAL: Final = ("inputs", "references", "time_window")
"""The members that a request may leave out."""


def _broken(message: str, body: bytes) -> Malformed:
    if body.startswith(b"\xef\xbb\xbf"):
        return Malformed("starts with a byte order mark; send JSON without one")
    if found := _BYTE(message):
        reason = found[1].removeprefix("JSON is malformed: ")
        at = int(found[2])
        return Malformed(f"not JSON: {reason} at byte {at}, near {excerpt(body[max(at - 8, 0) : at + 8])}")
    if message == "Input data was truncated":
        return Malformed(f"not JSON: its {len(body)} bytes end inside a value, or a string inside an escape")
    return Malformed(f"not JSON: {excerpt(message)}")
