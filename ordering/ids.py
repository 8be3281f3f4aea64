"""Transaction ids, state references and their text forms; how long a name may be (docs/formats.md, Values).

| value | bytes here | text |
|---|---|---|
| transaction id | 32 | 64 lower-case hex digits |
| state reference | 36: transaction id, then u32 index | `<64 hex>:<decimal index>` without leading zeros |

Both values are plain `bytes`: they are made by the hundred thousand a second, compared byte for byte, and used as keys as they are.
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
"""Of a name in UTF-8, the notary's or a worker's; it has 1 at least."""

_HEX_64 = re.compile(r"[0-9a-f]{64}").fullmatch
_STATE = re.compile(r"[0-9a-f]{64}:(?:0|[1-9][0-9]{0,9})").fullmatch


def parse_hash(text: str, where: str = "") -> bytes:
    """The 32 bytes that 64 lower-case hex digits stand for; `Malformed` at `where` otherwise."""
    if _HEX_64(text) is None:
        raise Malformed(f"expected 64 lower-case hex digits, got {excerpt(text)}", where)
    return bytes.fromhex(text)


def parse_state(text: str, where: str = "") -> StateRef:
    """The 36 bytes of a state reference in text form; `Malformed` at `where` otherwise."""
    if _STATE(text) is None or (index := int(text[65:])) > INDEX_MAX:
        raise Malformed(f"expected a state reference `<64 lower-case hex digits>:<index up to 4294967295>`, got {excerpt(text)}", where)
    return bytes.fromhex(text[:64]) + index.to_bytes(4, "big")


def format_state(state: StateRef) -> str:
    """The text form of a 36-byte state reference."""
    return f"{state[:32].hex()}:{int.from_bytes(state[32:], 'big')}"


def excerpt(value: object, characters_max: int = 80) -> str:
    """A value from outside as an error message may show it: quoted, ASCII, cut short."""
    text = ascii(value)
    return text if len(text) <= characters_max else f"{text[:characters_max]}... ({len(text)} characters)"
