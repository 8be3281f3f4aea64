"""Spark expressions for big-endian numbers inside binary columns; they need no Python worker.

Unsigned 64-bit numbers stay binary, 8 bytes: Spark compares binary values as unsigned, and its signed longs cannot hold all of them.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F


def part(column: Column, start: int | Column, length: int | Column) -> Column:
    """Returns `length` bytes from the byte `start` on, counted from 0; fewer if the value ends before."""
    position = F.lit(start) + 1 if isinstance(start, int) else start + 1
    return F.substring(column, position, F.lit(length) if isinstance(length, int) else length)


def unsigned(octets: Column) -> Column:
    """Decodes an unsigned number of at most 7 bytes as a long."""
    return F.conv(F.hex(octets), 16, 10).cast("bigint")


def signed(octets: Column) -> Column:
    """Decodes an i64 of 8 bytes as a long."""
    return F.conv(F.hex(octets), 16, -10).cast("bigint")


def u64(number: Column) -> Column:
    """Encodes a long in 8 bytes, in two's complement: the i64, and for a number from 0 on also the u64."""
    return F.unhex(F.lpad(F.hex(number), 16, "0"))


def sha256(octets: Column) -> Column:
    """Returns the SHA-256, 32 bytes."""
    return F.unhex(F.sha2(octets, 256))
