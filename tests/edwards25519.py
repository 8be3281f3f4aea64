"""Arithmetic on edwards25519 (RFC 8032, 5.1), slow and plain: for signatures at the borders of the rules, which no library makes."""

from typing import Final, TypeAlias

Point: TypeAlias = tuple[int, int]

P: Final = 2**255 - 19
ORDER: Final = 2**252 + 27742317777372353535851937790883648493
"""The prime order of the base point."""
IDENTITY: Final = (0, 1)
_D: Final = -121665 * pow(121666, -1, P) % P


def add(first: Point, second: Point) -> Point:
    """Returns the sum of two points."""
    (a, b), (c, e) = first, second
    product = _D * a * b * c * e % P
    return (a * e + b * c) * pow(1 + product, -1, P) % P, (b * e + a * c) * pow(1 - product, -1, P) % P


def multiply(factor: int, point: Point) -> Point:
    """Returns the point added to itself `factor` times."""
    total = IDENTITY
    for bit in f"{factor:b}":
        total = add(total, total)
        if bit == "1":
            total = add(total, point)
    return total


def encoded(point: Point) -> bytes:
    """Returns the 32 bytes of a point."""
    x, y = point
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _even_x(y: int) -> int | None:
    """Returns the even x of the point with that y; None if there is no such point."""
    squared = (y * y - 1) * pow(_D * y * y + 1, -1, P) % P
    x = pow(squared, (P + 3) // 8, P)
    if x * x % P != squared:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != squared:
        return None
    return x if x % 2 == 0 else P - x


def _of_order_8() -> Point:
    for y in range(2, 100):
        x = _even_x(y)
        if x is not None and multiply(4, point := multiply(ORDER, (x, y))) != IDENTITY:
            return point
    raise AssertionError("a quarter of all points has a part of order 8")


_BASE_Y: Final = 4 * pow(5, -1, P) % P
_BASE_X: Final = _even_x(_BASE_Y)
assert _BASE_X is not None
BASE: Final[Point] = (_BASE_X, _BASE_Y)
TORSION: Final = _of_order_8()
"""A point of order 8."""
