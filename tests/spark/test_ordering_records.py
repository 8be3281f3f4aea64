"""Tests that ordering records decoded into columns have the same fields as those that the checkers decode. No Spark is needed."""

import random
from collections.abc import Iterator, Sequence
from hashlib import sha256, sha512
from struct import pack

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.decision import Decision, Outcome, leaf
from ordering.records import (
    FORMAT_VERSION,
    Activate,
    Checkpoint,
    Entry,
    Fence,
    Genesis,
    Key,
    OrderingRecord,
    Partitions,
    Register,
    Retire,
    SalvageBegin,
    SalvageDone,
    SalvageItems,
    Settle,
    Trim,
    View,
    encode,
)
from ordering.salvage import Decided, Hashed, Lost
from spark_join.constants import RECORD_DOMAIN
from spark_join.identity import Identity, is_signed
from spark_join.order import ordering_records
from spark_join.order.ordering_records import Fields, read
from spark_join.order.salvage import Item, read_items
from tests.checkers import records as one_by_one
from tests.ordering.test_records import COMMITTED, REJECTED

MAX = 2**64 - 1
VIEW, FAR = View(7, b"\x07" * 32), View(MAX, b"\xff" * 32)
SIGNATURE = bytes(64)
RECORDS: list[OrderingRecord] = [
    Entry(1, 1, VIEW, 1_760_000_000_000, 5, b"\x05" * 32, (bytes(32), b"\xff" * 32)),
    Entry(MAX, MAX - 1, FAR, -(2**63), 2**32 - 1, bytes(32), ()),
    Entry(3, 2**63, VIEW, 2**63 - 1, 0, bytes(32), (b"\x80" * 32,)),
    Register(bytes(16), VIEW, 1, "w\u00f6rker", "0.1"),
    Register(b"\xff" * 16, FAR, 65535, "", ""),
    Fence(1, VIEW, MAX, 0),
    Fence(MAX, FAR, 2, 2**63),
    Checkpoint(1, VIEW, MAX, b"\x01" * 32),
    Activate(2),
    Activate(65535),
    Genesis(bytes(16), 1, b"\x01" * 32, b"\x02" * 32, "O=N", "n.example"),
    Genesis(bytes(16), 2**32 - 1, b"\x01" * 32, b"\x02" * 32, "\u00f6" * 127, "x" * 255),
    Key(b"\x03" * 32, bytes(64)),
    Partitions(2**32 - 1),
    Retire(MAX),
    Settle(FAR),
    Settle(VIEW, b"\x04" * 32),
    SalvageBegin(b"\x04" * 32, VIEW, MAX),
    SalvageItems(b"\x04" * 32, FAR, 7, (Lost(), Hashed(b"\x09" * 32), COMMITTED, REJECTED)),
    SalvageDone(b"\x04" * 32, VIEW, MAX, b"\x01" * 32),
    Trim(b"\x04" * 32, FAR, MAX, b"\x01" * 32),
]
LOW, HIGH = (bytes((at,)) * 36 + b"\x00" + bytes(32) for at in (1, 2))
"""Two conflicts of inputs."""
COMMITTED_7, REJECTED_7 = (Decided(leaf(Decision(7, bytes(32), outcome, 5))) for outcome in (Outcome.COMMITTED, Outcome.INPUT_CONFLICT))
GOOD = [encode(record) + SIGNATURE for record in RECORDS]
NOT_UTF_8 = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"]


def _altered(draw: random.Random) -> bytes:
    value = bytearray(draw.choice(GOOD))
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(min(len(value), draw.choice([2, 34, 200]))) if value else 0
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


def _plain(fields: Fields) -> object:
    """Returns the fields as the checkers name them."""

    def number(name: str) -> int:
        return int.from_bytes(fields[name], "big")

    view = one_by_one.View(number("seen"), fields["history"]) if "seen" in fields else None
    match fields["kind"]:
        case "entry":
            numbers = [number("incarnation"), number("sequence"), fields["sent_at_ms"], fields["partition"], fields["count"]]
            return (view, numbers, fields["payload_hash"], fields["ids_digest"])
        case "register":
            return one_by_one.Register(fields["nonce"], view, fields["format_version"], fields["name"].decode())  # type: ignore[arg-type]
        case "fence":
            return one_by_one.Fence(number("writer"), view, number("incarnation"), number("sequence"))  # type: ignore[arg-type]
        case "checkpoint":
            return one_by_one.Root(number("incarnation"), view, number("tree_size"), fields["root"])  # type: ignore[arg-type]
        case "activate":
            return one_by_one.Activate(fields["format_version"])
        case "genesis":
            texts = [fields[name].decode() for name in ("notary_name", "origin")]
            return one_by_one.Genesis(*[fields[name] for name in ("salt", "partitions", "notary_key", "owner_key")], *texts)
        case "key":
            return one_by_one.Key(fields["public_key"], fields["endorsement"])
        case "partitions":
            return one_by_one.Partitions(fields["partitions"])
        case "retire":
            return one_by_one.Retire(number("incarnation"))
        case "settle":
            return one_by_one.Settle(view, fields.get("public_key", b""))  # type: ignore[arg-type]
        case "salvage-begin":
            return one_by_one.Begin(fields["public_key"], view, number("first"))  # type: ignore[arg-type]
        case "salvage-items":
            return (fields["public_key"], view, number("first"), fields["count"], fields["items_time_ms"])
        case "salvage-done":
            return one_by_one.Done(fields["public_key"], view, number("tree_size"), fields["root"])  # type: ignore[arg-type]
        case "trim":
            return one_by_one.Trim(fields["public_key"], view, number("tree_size"), fields["root"])  # type: ignore[arg-type]
    assert fields == {"kind": "malformed"}
    return None


def _expected(value: bytes | None) -> object:
    record = one_by_one.ordering_record(value, tuple(range(1, FORMAT_VERSION + 1)))
    if isinstance(record, one_by_one.Items):
        times = [int.from_bytes(item.leaf[59:67], "big", signed=True) for item in record.items if item.leaf]
        return (record.key, record.view, record.first, len(record.items), max(times, default=None))
    if not isinstance(record, one_by_one.Entry):
        return record
    numbers = [record.incarnation, record.sequence, record.sent_at, record.partition, len(record.ids)]
    return (record.view, numbers, record.payload_hash, sha256(bytes.fromhex("".join(record.ids))).digest())


def test_altered_records_are_read_alike() -> None:
    """Good records, and thousands of altered ones, give the same numbers, names and ids, and the same ones are malformed."""
    draw = random.Random(1)
    register = encode(Register(bytes(16), VIEW, 1, "", ""))
    bad_text = [register[:-4] + len(text).to_bytes(2, "big") + text + bytes(2) for text in NOT_UTF_8]
    bad_text += [register[:-2] + len(text).to_bytes(2, "big") + text for text in NOT_UTF_8]
    values = [*GOOD, *[value + SIGNATURE for value in bad_text], None, b"", *[_altered(draw) for _ in range(10_000)]]
    found = [_plain(read(value)) for value in values]
    assert found == [_expected(value) for value in values]
    assert None not in found[: len(GOOD)]
    assert sum(record is None for record in found) in range(3_000, 9_700)


def test_items_over_the_last_position() -> None:
    """Items beyond the last u64 are malformed, and raise no error of Python."""
    key, view = bytes(32), bytes(8 + 32)
    value = bytes((2, 11)) + key + view + bytes((1,)) + pack(">QI", MAX, 2) + b"\x02\x02" + SIGNATURE
    assert read(value) == {"kind": "malformed"}


def test_what_only_its_size_makes_malformed() -> None:
    """A genesis record without a notary name, and a salvage record of more than 1 MiB, are malformed; one of 1 MiB is not."""
    genesis, head = Genesis(bytes(16), 1, bytes(32), bytes(32), "n", ""), bytes((2, 11)) + bytes(32 + 40) + bytes((1,))
    nameless = encode(genesis)[:-5] + bytes(4) + SIGNATURE
    hashes, lost = divmod((1 << 20) - len(head) - 12 - len(SIGNATURE), 33)
    largest, larger = (
        head + pack(">QI", 0, hashes + number) + (b"\x01" + bytes(32)) * hashes + b"\x02" * number + SIGNATURE
        for number in (lost, lost + 1)
    )
    assert len(largest) == 1 << 20
    for value, kind in ((nameless, "malformed"), (largest, "salvage-items"), (larger, "malformed")):
        assert read(value)["kind"] == kind
        assert (one_by_one.ordering_record(value, (1, 2)) is None) == (kind == "malformed")


def _changed(item: Decided, conflicts: Sequence[bytes], *inputs: bytes, digest: bytes | None = None) -> Decided:
    """Returns the item with other conflicts and inputs; its leaf has their number and hash, or another hash."""
    joined = b"".join(conflicts)
    return Decided(item.leaf[:-36] + pack(">I", len(conflicts)) + (digest or sha256(joined).digest()), joined, inputs)


@pytest.mark.parametrize(
    ("item", "is_good"),
    [
        (_changed(REJECTED_7, [LOW, HIGH]), True),
        (_changed(REJECTED_7, [HIGH, LOW]), False),
        (_changed(REJECTED_7, [LOW, LOW]), False),
        (_changed(REJECTED_7, [LOW], digest=bytes(32)), False),
        (_changed(REJECTED_7, [LOW[:36] + b"\x01" + LOW[37:]]), False),
        (_changed(REJECTED_7, [LOW], bytes(36)), False),
        (_changed(COMMITTED_7, [], LOW[:36], HIGH[:36]), True),
        (_changed(COMMITTED_7, [], HIGH[:36], LOW[:36]), False),
        (_changed(COMMITTED_7, [], LOW[:36], LOW[:36]), False),
    ],
)
def test_each_rule_of_an_item(item: Decided, is_good: bool) -> None:
    """An item whose order, kinds, hash or inputs break one rule makes its record malformed, for both decoders."""
    value = encode(SalvageItems(b"\x04" * 32, VIEW, 7, (item,))) + SIGNATURE
    assert (read(value)["kind"], one_by_one.ordering_record(value, (1, 2)) is not None) == (
        "salvage-items" if is_good else "malformed",
        is_good,
    )


def test_items_without_the_owners_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader decodes the items of a salvage only if the owner has signed the record."""
    owner = Ed25519PrivateKey.generate()
    identity = Identity(bytes(32), "n", owner.public_key().public_bytes_raw(), ((0, bytes(32)),))
    body = encode(SalvageItems(b"\x04" * 32, VIEW, 7, (Lost(), Hashed(b"\x09" * 32), COMMITTED)))
    signature = owner.sign(RECORD_DOMAIN + identity.log_id + body)
    decoded: list[bytes] = []

    def counted(rest: bytes) -> Iterator[Item]:
        decoded.append(rest)
        return read_items(rest)

    monkeypatch.setattr(ordering_records, "read_items", counted)
    rows = _parsed(identity, body + SIGNATURE, body + signature)
    assert [(row["kind"], row["signed"]) for row in rows] == [("salvage-items", False), ("salvage-items", True)]
    assert [row["items_time_ms"] is None for row in rows] == [True, False]
    assert len(decoded) == 1


def _parsed(identity: Identity, *values: bytes) -> list[Fields]:
    columns = {"offset": [*range(len(values))], "append_time_ms": [0] * len(values), "value": [*values]}
    rows: list[Fields] = ordering_records._parsed(identity, pa.RecordBatch.from_pydict(columns)).to_pylist()
    return rows


def test_keys_that_sign_everything() -> None:
    """A point of small order, with which one signature is valid for every message, is rejected as a key; so is one in another encoding."""
    identity_point = b"\x01" + bytes(31)
    for key in (identity_point, bytes(32), b"\x01" + bytes(30) + b"\x80", (2**255 - 18).to_bytes(32, "little"), b"", b"\xff" * 32):
        assert not is_signed(key, identity_point + bytes(32), b"anything")
    # With such a key, each number and its multiple of the base point are a signature too: the key must be rejected for its own sake.
    seed, order = bytes(32), 2**252 + 27742317777372353535851937790883648493
    number = (int.from_bytes(sha512(seed).digest()[:32], "little") & (2**254 - 8) | 2**254) % order
    signature = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw() + number.to_bytes(32, "little")
    for key in (identity_point, (2**255 - 18).to_bytes(32, "little")):
        assert not is_signed(key, signature, b"anything")
    own = signature[:32]  # the public key of `number`: it makes a signature whose first half is of small order
    challenge = int.from_bytes(sha512(identity_point + own + b"anything").digest(), "little")
    assert not is_signed(own, identity_point + (challenge * number % order).to_bytes(32, "little"), b"anything")
