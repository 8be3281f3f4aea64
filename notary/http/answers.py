"""What an answer is before it is sent, and the headers that all kinds share."""

from typing import Final, TypeAlias

Headers: TypeAlias = list[tuple[bytes, bytes]]
Answer: TypeAlias = tuple[int, Headers, bytes]
"""(status, headers without the length, body)."""

JSON: Final[Headers] = [(b"content-type", b"application/json")]
TEXT: Final[Headers] = [(b"content-type", b"text/plain; charset=utf-8")]
METRICS: Final[Headers] = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
