"""Ordering records in columns say what they say one by one."""

import random
from hashlib import sha256

import pytest
from pyspark.sql import Row, SparkSession

from ordering.records import Activate, Checkpoint, Entry, Fence, Register, encode
from spark_join.order import ordering_records
from tests.checkers import records as one_by_one

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

MAX = 2**64 - 1
GOOD = [
    encode(record)
    for record in (
        Entry(1, 1, 1_760_000_000_000, 5, (bytes(32), b"\xff" * 32)),
        Entry(MAX, MAX - 1, -(2**63), 2**32 - 1, ()),
        Entry(3, 2**63, 2**63 - 1, 0, (b"\x80" * 32,)),
        Register(bytes(16), 1, "w\u00f6rker", "0.1"),
        Register(b"\xff" * 16, 65535, "", ""),
        Fence(MAX, 0),
        Fence(2, 2**63),
        Checkpoint(1, MAX, b"\x01" * 32),
        Activate(2),
        Activate(65535),
    )
]
NOT_UTF_8 = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"]


def _altered(draw: random.Random) -> bytes:
    value = bytearray(draw.choice(GOOD))
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(min(len(value), draw.choice([2, 34, 100]))) if value else 0
        match draw.randrange(5):
            case 0:
                value[at : at + 1] = bytes((draw.randrange(256),))
            case 1:
                del value[at:]
            case 2:
                value += draw.randbytes(draw.choice([1, 2, 32]))
            case 3:
                value[at:at] = draw.randbytes(1)
            case _:
                del value[at : at + draw.choice([1, 32])]
    return bytes(value)


def _plain(row: Row) -> object:
    number = {name: int.from_bytes(row[name] or b"", "big") for name in ("incarnation", "sequence", "tree_size")}
    match row.kind:
        case "entry":
            return (number["incarnation"], number["sequence"], row.sent_at_ms, row.partition, row["count"], bytes(row.ids_digest))
        case "register":
            return one_by_one.Register(bytes(row.nonce), row["name"].decode())
        case "fence":
            return one_by_one.Fence(number["incarnation"], number["sequence"])
        case "checkpoint":
            return one_by_one.Root(number["incarnation"], number["tree_size"], bytes(row.root))
        case "activate":
            return one_by_one.Activate(row.format_version)
    assert row.kind == "malformed"
    return None


def _expected(value: bytes | None) -> object:
    record = one_by_one.ordering_record(value)
    if not isinstance(record, one_by_one.Entry):
        return record
    digest = sha256(bytes.fromhex("".join(record.ids))).digest()
    return (record.incarnation, record.sequence, record.sent_at, record.partition, len(record.ids), digest)


def test_read_alike(spark: SparkSession) -> None:
    """Good records, and thousands of altered ones: all numbers, names and ids, and which of them are malformed."""
    draw = random.Random(1)
    register = Register(bytes(16), 1, "", "")
    bad_text = [encode(register)[:20] + len(text).to_bytes(2, "big") + text + bytes(2) for text in NOT_UTF_8] + [
        encode(register)[:-2] + len(text).to_bytes(2, "big") + text for text in NOT_UTF_8
    ]
    values: list[bytes | None] = [*GOOD, *bad_text, None, b"", *[_altered(draw) for _ in range(3_000)]]
    frame = spark.createDataFrame([(n, 5, value) for n, value in enumerate(values)], "offset bigint, append_time_ms bigint, value binary")
    found = [_plain(row) for row in ordering_records.parse(frame).orderBy("offset").collect()]
    assert found == [_expected(value) for value in values]
    assert sum(record is None for record in found) in range(1_000, 2_900)
