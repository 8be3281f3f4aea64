"""Strict JSON decoding for input from outside: returns a value of the declared type, or raises `Malformed` with the path of the error.

RFC 8259 leaves some points open. They are settled here and in the callers' types, so that no two workers read one body differently. A body
must be UTF-8 without a byte order mark and without lone surrogates. Unknown members are rejected (`forbid_unknown_fields`),
as are integers with a fraction or exponent. The last of several members with one name counts; an earlier one of the wrong type is still
rejected.

msgspec checks all of that while it parses, and reports the path in its own words: "Expected `str`, got `int` - at
`$.requests[3].inputs[0]`". This module maps its errors, once, to the words of the contract.
"""

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from ordering.errors import Malformed
from ordering.ids import excerpt

T = TypeVar("T")

# The path comes last. The only text of the sender in such a message is the name of an unknown member. A name that looks like a path
# misleads only its sender, about a body that is rejected anyway.
_PLACE = re.compile(r"(.*) - at `\$([A-Za-z_.0-9\[\]]*)`", re.DOTALL).fullmatch
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL).fullmatch
_MISSING = re.compile(r"Object missing required field `(\w+)`").fullmatch
_BYTE = re.compile(r"(.*) \(byte (\d+)\)", re.DOTALL).fullmatch

# Python's type names mean nothing to a client written in another language.
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
_OPTIONAL: Final = ("inputs", "references", "time_window")
"""The members that a request may leave out."""


def decode_strictly(decode: Callable[[bytes], T], body: bytes) -> T:
    """Returns the result of `decode` (of a typed `msgspec.json.Decoder`) on `body`, or raises `Malformed` with the path in the body."""
    try:
        return decode(body)
    except msgspec.ValidationError as problem:
        raise _mismatch(str(problem)) from None
    except (UnicodeDecodeError, msgspec.DecodeError) as problem:  # msgspec before 0.23 raises the first for invalid UTF-8
        raise (_not_utf8(body) or _broken(str(problem), body)) from None
    except (ValueError, OverflowError, RecursionError) as problem:
        # Never seen with the types of this package, but msgspec may raise one for a huge number or deep nesting, and callers expect
        # `Malformed`.
        raise Malformed(f"not JSON that can be read: {excerpt(str(problem))}") from None


def within(outer: str, problem: Malformed) -> Malformed:
    """Returns the same error with a longer path: `inputs[0]` within `requests[3]` is `requests[3].inputs[0]`."""
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
        what += "; leave the member out instead" if where.endswith(_OPTIONAL) else "; give a value"
    return Malformed(what, where)


def _not_utf8(body: bytes) -> Malformed | None:
    try:
        body.decode()
    except UnicodeDecodeError as problem:
        return Malformed(f"not UTF-8: {problem.reason}, byte {problem.object[problem.start]:#04x}; send JSON in UTF-8")
    return None


def _broken(message: str, body: bytes) -> Malformed:
    if body.startswith(b"\xef\xbb\xbf"):
        return Malformed("starts with a byte order mark; send JSON without one")
    if found := _BYTE(message):
        reason = found[1].removeprefix("JSON is malformed: ")
        at = int(found[2])
        return Malformed(f"not JSON: {reason} at byte {at}, near {excerpt(body[max(at - 8, 0) : at + 8])}")
    if message == "Input data was truncated":
        if not body.strip():
            return Malformed("not JSON: it is empty")
        return Malformed(f"not JSON: its {len(body)} bytes end inside a value, or a string inside an escape")
    return Malformed(f"not JSON: {excerpt(message)}")
