"""Transaction ids, state references and their text forms, and the length of a name (docs/formats.md, Values).

| value | bytes here | text |
|---|---|---|
| transaction id | 32 | 64 lower-case hex digits |
| state reference | 36: transaction id, then u32 index | `<64 hex>:<decimal index>` without leading zeros |

Both values are plain `bytes`: hundreds of thousands are created every second, compared byte for byte, and used as keys unchanged.
"""

import re
from typing import Final, TypeAlias

from ordering.errors import Malformed

TransactionId: TypeAlias = bytes
StateRef: TypeAlias = bytes

TRANSACTION_ID_BYTES: Final = 32
STATE_REF_BYTES: Final = 36
INDEX_MAX: Final = 2**32 - 1
NAME_BYTES_MAX: Final = 255
"""The maximum length in UTF-8 of a notary's or a worker's name; the minimum is 1."""

# The schemas of both text forms, for the document from which clients are generated (OpenAPI).
_MOST: Final = str(INDEX_MAX)
# Shorter than the largest index, or as long and smaller at its first other digit, or the largest.
_INDEX: Final = "|".join(
    ["0", f"[1-9][0-9]{{0,{len(_MOST) - 2}}}"]
    + [
        f"{_MOST[:at]}[{int(not at)}-{int(digit) - 1}][0-9]{{{len(_MOST) - at - 1}}}"
        for at, digit in enumerate(_MOST)
        if int(digit) > int(not at)
    ]
    + [_MOST]
)
HASH_SCHEMA: Final = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
STATE_SCHEMA: Final = {
    "type": "string",
    "pattern": f"^[0-9a-f]{{64}}:({_INDEX})$",
    "description": f"`<transaction id>:<index>`, up to {_MOST}",
}

_HEX_64 = re.compile(r"[0-9a-f]{64}").fullmatch
_STATE = re.compile(r"[0-9a-f]{64}:(?:0|[1-9][0-9]{0,9})").fullmatch


def parse_hash(text: str, where: str = "") -> bytes:
    """Returns the 32 bytes that 64 lower-case hex digits encode. Raises `Malformed` at `where` for anything else."""
    if _HEX_64(text) is None:
        raise Malformed(f"expected 64 lower-case hex digits, got {excerpt(text)}", where)
    return bytes.fromhex(text)


def parse_state(text: str, where: str = "") -> StateRef:
    """Returns the 36 bytes of a state reference in text form. Raises `Malformed` at `where` for anything else."""
    if _STATE(text) is None or (index := int(text[65:])) > INDEX_MAX:
        raise Malformed(f"expected a state reference `<64 lower-case hex digits>:<index up to 4294967295>`, got {excerpt(text)}", where)
    return bytes.fromhex(text[:64]) + index.to_bytes(4, "big")


def format_state(state: StateRef) -> str:
    """Returns the text form of a 36-byte state reference."""
    return f"{state[:32].hex()}:{int.from_bytes(state[32:], 'big')}"


def excerpt(value: object, characters_max: int = 80) -> str:
    """Returns a value from outside for an error message: quoted, ASCII, truncated to `characters_max`."""
    if isinstance(value, str | bytes) and len(value) > characters_max:  # escaping megabytes takes tens of milliseconds
        return f"{ascii(value[:characters_max])[:characters_max]}... ({len(value)} characters)"
    text = ascii(value)
    return text if len(text) <= characters_max else f"{text[:characters_max]}... ({len(text)} characters)"
