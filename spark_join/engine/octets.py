"""Numbers inside binary columns, big-endian, as expressions that Spark computes itself.

Unsigned 64-bit numbers stay the 8 bytes that they are: Spark compares binary as unsigned, and its longs would not hold them all.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F


def part(column: Column, start: int | Column, length: int | Column) -> Column:
    """`length` bytes from the byte `start` on, counted from 0; fewer where the value ends."""
    position = F.lit(start) + 1 if isinstance(start, int) else start + 1
    return F.substring(column, position, F.lit(length) if isinstance(length, int) else length)


def unsigned(octets: Column) -> Column:
    """The number that at most 7 bytes say."""
    return F.conv(F.hex(octets), 16, 10).cast("bigint")


def signed(octets: Column) -> Column:
    """The i64 that 8 bytes say."""
    return F.conv(F.hex(octets), 16, -10).cast("bigint")


def u64(number: Column) -> Column:
    """The 8 bytes of a long, as u64 if it is not negative and as i64 in any case."""
    return F.unhex(F.lpad(F.hex(number), 16, "0"))


def sha256(octets: Column) -> Column:
    """The 32 bytes of SHA-256."""
    return F.unhex(F.sha2(octets, 256))
