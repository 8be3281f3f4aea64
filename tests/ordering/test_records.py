"""Tests the bytes of ordering records: golden bytes made by hand, round trips, and decoders that accept any bytes."""

import json
import struct
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.errors import CorruptRecord
from ordering.ids import NAME_BYTES_MAX
from ordering.records import (
    FORMAT_VERSION,
    SIGNATURE_BYTES,
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
    batch_key,
    decode,
    decode_batch_key,
    encode,
)
from ordering.salvage import CONFLICT_BYTES, Decided, Hashed, Item, Lost, leaf_of

VECTORS = json.loads((Path(__file__).parents[1] / "vectors.json").read_text())
EXAMPLE_VALUES = [bytes.fromhex(example["value_hex"]) for example in VECTORS["log"]["ordering"]]

SIGNATURE = bytes(range(100, 164))
"""Any 64 bytes will do, because `decode` does not verify the signature."""
ID_1, ID_2, ROOT, HASH, NONCE = b"\x01" * 32, b"\x02" * 32, b"\x0f" * 32, b"\x0a" * 32, bytes(range(16))
KEY_1, KEY_2, ENDORSEMENT = b"\x11" * 32, b"\x12" * 32, b"\x13" * 64
VIEW = View(9, b"\x0b" * 32)
SEEN = struct.pack(">Q", 9) + b"\x0b" * 32

STATE_1, STATE_2 = ID_1 + bytes(4), ID_1 + b"\0\0\0\1"


def item_leaf(position: int, outcome: int, conflicts: bytes = b"", count: int = 0) -> bytes:
    """Returns a leaf of the transaction `ID_2` at log time 5."""
    head = b"notary/decision/v1\n" + struct.pack(">Q", position) + ID_2 + struct.pack(">qBI", 5, outcome, count)
    return head + sha256(conflicts).digest()


CONFLICTS = STATE_1 + b"\0" + HASH + STATE_2 + b"\0" + HASH
COMMITTED = Decided(item_leaf(9, 0), b"", (STATE_1, STATE_2))
REJECTED = Decided(item_leaf(10, 1, CONFLICTS, 2), CONFLICTS)
FOUR_ITEMS = b"\2" + b"\1" + ROOT + b"\0" + COMMITTED.leaf + b"\0\0\0\2" + STATE_1 + STATE_2 + b"\0" + REJECTED.leaf + CONFLICTS + bytes(4)
ALL_FORMATS = frozenset(range(1, FORMAT_VERSION + 1))

GOLDEN = [
    (
        Entry(3, 7, VIEW, 1_700_000_000_000, 5, HASH, (ID_1, ID_2)),
        b"\x01\x01" + struct.pack(">QQ", 3, 7) + SEEN + struct.pack(">qI", 1_700_000_000_000, 5) + HASH + b"\0\0\0\x02" + ID_1 + ID_2,
    ),
    (Entry(1, 1, VIEW, -1, 0, HASH, ()), b"\x01\x01" + struct.pack(">QQ", 1, 1) + SEEN + struct.pack(">qI", -1, 0) + HASH + bytes(4)),
    (
        Register(NONCE, VIEW, 1, "wörker", "0.1.0"),
        b"\x01\x02" + NONCE + SEEN + struct.pack(">HH", 1, 7) + "wörker".encode() + struct.pack(">H", 5) + b"0.1.0",
    ),
    (Fence(2, VIEW, 3, 0), b"\x01\x03" + struct.pack(">Q", 2) + SEEN + struct.pack(">QQ", 3, 0)),
    (Checkpoint(2, VIEW, 100, ROOT), b"\x01\x04" + struct.pack(">Q", 2) + SEEN + struct.pack(">Q", 100) + ROOT),
    (Activate(2), b"\x01\x05" + struct.pack(">H", 2)),
    (
        Genesis(NONCE, 4, KEY_1, KEY_2, "O=Nötary", "notary.example/x"),
        b"\x01\x06" + NONCE + b"\0\0\0\x04" + KEY_1 + KEY_2 + b"\0\x09" + "O=Nötary".encode() + b"\0\x10notary.example/x",
    ),
    (Key(KEY_1, ENDORSEMENT), b"\x01\x07" + KEY_1 + ENDORSEMENT),
    (Partitions(2**32 - 1), b"\x01\x08\xff\xff\xff\xff"),
    (Retire(2**63), b"\x01\x09" + struct.pack(">Q", 2**63)),
    (Settle(VIEW), b"\x01\x0a" + SEEN),
    (Settle(VIEW, KEY_1), b"\x02\x0a" + KEY_1 + SEEN),
    (SalvageBegin(KEY_1, VIEW, 7), b"\x02\x0b" + KEY_1 + SEEN + b"\0" + struct.pack(">Q", 7)),
    (
        SalvageItems(KEY_1, VIEW, 7, (Lost(), Hashed(ROOT), COMMITTED, REJECTED)),
        b"\x02\x0b" + KEY_1 + SEEN + b"\1" + struct.pack(">QI", 7, 4) + FOUR_ITEMS,
    ),
    (SalvageDone(KEY_1, VIEW, 11, ROOT), b"\x02\x0b" + KEY_1 + SEEN + b"\2" + struct.pack(">Q", 11) + ROOT),
    (Trim(KEY_1, VIEW, 2**63, ROOT), b"\x02\x0c" + KEY_1 + SEEN + struct.pack(">Q", 2**63) + ROOT),
]

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
hashes = st.binary(min_size=32, max_size=32)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=NAME_BYTES_MAX // 4)
some_names = names.filter(bool)
views = st.builds(View, u64, hashes)


@st.composite
def decided(draw: st.DrawFn, position: int) -> Decided:
    """Draw a decision at that position that breaks no rule of its form."""
    outcome = draw(st.integers(0, 3))
    states = sorted(draw(st.sets(st.binary(min_size=36, max_size=36), min_size=outcome in (1, 2), max_size=4)))
    kind = bytes([outcome - 1]) if outcome in (1, 2) else b""
    conflicts = b"".join([state + kind + draw(hashes) for state in states]) if kind else b""
    head = b"notary/decision/v1\n" + struct.pack(">Q", position) + draw(hashes)
    head += struct.pack(">qBI", draw(st.integers(-(2**63), 2**63 - 1)), outcome, len(states) if kind else 0)
    return Decided(head + sha256(conflicts).digest(), conflicts, tuple(states) if outcome == 0 else ())


@st.composite
def salvage_items(draw: st.DrawFn) -> SalvageItems:
    """Draw an items record."""
    first, count = draw(st.integers(0, 2**64 - 5)), draw(st.integers(1, 4))
    items: list[Item] = [draw(st.one_of(st.just(Lost()), st.builds(Hashed, hashes), decided(first + n))) for n in range(count)]
    return SalvageItems(draw(hashes), draw(views), first, tuple(items))


BY_KIND: dict[int, st.SearchStrategy[OrderingRecord]] = {
    1: st.builds(Entry, u64, u64, views, st.integers(-(2**63), 2**63 - 1), u32, hashes, st.lists(hashes, max_size=5).map(tuple)),
    2: st.builds(Register, st.binary(min_size=16, max_size=16), views, u16, names, names),
    3: st.builds(Fence, u64, views, u64, u64),
    4: st.builds(Checkpoint, u64, views, u64, hashes),
    5: st.builds(Activate, st.integers(1, 2**16 - 1)),
    6: st.builds(Genesis, st.binary(min_size=16, max_size=16), st.integers(1, 2**32 - 1), hashes, hashes, some_names, some_names),
    7: st.builds(Key, hashes, st.binary(min_size=64, max_size=64)),
    8: st.builds(Partitions, u32),
    9: st.builds(Retire, u64),
    10: st.builds(Settle, views),
    11: st.one_of(st.builds(SalvageBegin, hashes, views, u64), st.builds(SalvageDone, hashes, views, u64, hashes), salvage_items()),
    12: st.builds(Trim, hashes, views, u64, hashes),
}
RECORDS = st.one_of(*BY_KIND.values())
signatures = st.binary(min_size=SIGNATURE_BYTES, max_size=SIGNATURE_BYTES)


@pytest.mark.parametrize(("record", "data"), GOLDEN, ids=lambda value: type(value).__name__)
def test_every_kind_has_its_layout(record: OrderingRecord, data: bytes) -> None:
    """Every kind has the layout that the table in `ordering.records` gives."""
    assert encode(record) == data
    assert decode(data + SIGNATURE, ALL_FORMATS) == record


def test_golden_bytes_have_every_kind() -> None:
    """Golden bytes exist for every kind."""
    assert {data[1] for _, data in GOLDEN} == set(range(1, 13))


@pytest.mark.parametrize("kind", BY_KIND)
@given(data=st.data())
def test_any_record_decodes_from_its_bytes(kind: int, data: st.DataObject) -> None:
    """A record of any kind, with any fields, decodes from its own bytes."""
    record, signature = data.draw(BY_KIND[kind]), data.draw(signatures)
    encoded = encode(record)
    assert (encoded[0], encoded[1]) == (2 if kind > 10 else 1, kind)
    assert decode(encoded + signature, ALL_FORMATS) == record


def total(data: bytes | None) -> None:
    try:
        record = decode(data, ALL_FORMATS)
    except CorruptRecord:
        return
    assert data is not None
    assert encode(record) == data[:-SIGNATURE_BYTES]


@given(
    st.none()
    | st.binary(max_size=300)
    | st.builds(lambda version, kind, rest: bytes([version, kind]) + rest, st.integers(0, 2), st.integers(0, 13), st.binary(max_size=300))
)
def test_decode_is_total(data: bytes | None) -> None:
    """Any bytes decode to a record with exactly these bytes, or raise `CorruptRecord`."""
    total(data)


@given(RECORDS, st.data())
def test_decode_is_total_near_real_records(record: OrderingRecord, data: st.DataObject) -> None:
    """A real record that was changed, truncated or extended decodes to its last byte, or is rejected."""
    complete = bytearray(encode(record) + SIGNATURE)
    complete[data.draw(st.integers(0, len(complete) - 1))] = data.draw(st.integers(0, 255))
    total(bytes(complete[: data.draw(st.integers(0, len(complete)))]))
    total(bytes(complete) + data.draw(st.binary(max_size=40)))


SIGNED = [*[data + SIGNATURE for _, data in GOLDEN], *EXAMPLE_VALUES]


@pytest.mark.parametrize("value", SIGNED, ids=lambda value: f"kind {value[1]}, {len(value)} bytes")
def test_every_truncation_is_refused(value: bytes) -> None:
    """No prefix of a record is a record: each kind's length follows from its first bytes."""
    for length in range(len(value)):
        with pytest.raises(CorruptRecord):
            decode(value[:length], ALL_FORMATS)


@pytest.mark.parametrize("value", SIGNED, ids=lambda value: f"kind {value[1]}, {len(value)} bytes")
@given(more=st.binary(min_size=1, max_size=200))
def test_every_extension_is_refused(value: bytes, more: bytes) -> None:
    """A record with extra bytes behind it, even a signature or another transaction id, is rejected."""
    for extended in (value + more, value + bytes(32), value + value[-SIGNATURE_BYTES:], value + value):
        with pytest.raises(CorruptRecord):
            decode(extended, ALL_FORMATS)


GENESIS = b"\x01\x06" + NONCE


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, "at least 66 bytes"),
        (b"", "at least 66 bytes"),
        (b"\x01", "at least 66 bytes"),
        (b"\x01\x05" + SIGNATURE[1:], "at least 66 bytes"),
        (b"\x02\x01" + SIGNATURE, "format version 2 is not active"),
        (b"\x00\x01" + SIGNATURE, "format version 0 is not active"),
        (b"\x01\x00" + SIGNATURE, "kind 0 is unknown"),
        (b"\x01\x0b" + SIGNATURE, "kind 11 is unknown to format version 1"),
        (b"\x01\x0c" + SIGNATURE, "kind 12 is unknown to format version 1"),
        (b"\x01\x0d" + SIGNATURE, "kind 13 is unknown"),
        (GOLDEN[0][1][:-1] + SIGNATURE, "should have 168 bytes and has 167"),
        (GOLDEN[1][1][:-4] + b"\xff\xff\xff\xff" + SIGNATURE, "should have 137438953544 bytes and has 104"),
        (b"\x01\x02" + NONCE + SEEN + struct.pack(">HH", 1, 2) + b"\xff\xff" + bytes(2) + SIGNATURE, "does not decode"),
        (b"\x01\x02" + NONCE + SEEN + struct.pack(">HH", 1, 9) + b"short" + SIGNATURE, "ends inside a text of 9 bytes"),
        (b"\x01\x02" + NONCE + SEEN + struct.pack(">HHH", 1, 0, 1) + SIGNATURE, "ends inside a text of 1 bytes"),
        (b"\x01\x05\x00\x00" + SIGNATURE, "version 0, which does not exist"),
        (GENESIS + bytes(4) + KEY_1 + KEY_2 + b"\0\x01N\0\x01o" + SIGNATURE, "no payload partition"),
        (GENESIS + b"\0\0\0\x01" + KEY_1 + KEY_2 + b"\0\0\0\x01o" + SIGNATURE, "this one has 0"),
        (GENESIS + b"\0\0\0\x01" + KEY_1 + KEY_2 + b"\0\x01N\0\0" + SIGNATURE, "this one has 0"),
        (GENESIS + b"\0\0\0\x01" + KEY_1 + KEY_2 + b"\x01\0" + b"N" * 256 + b"\0\x01o" + SIGNATURE, "this one has 256"),
    ],
)
def test_the_error_names_the_problem(data: bytes | None, why: str) -> None:
    """The error names the problem."""
    with pytest.raises(CorruptRecord, match=why):
        decode(data)


HEAD = b"\x02\x0b" + KEY_1 + SEEN
ITEMS = HEAD + b"\1" + struct.pack(">Q", 9)
OTHER_KIND = CONFLICTS[:CONFLICT_BYTES] + STATE_2 + b"\1" + HASH


def an_item(leaf: bytes, rest: bytes = bytes(4)) -> bytes:
    """Returns the unsigned bytes of an items record of one decision."""
    return ITEMS + b"\0\0\0\1\0" + leaf + rest


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x02\x01" + GOLDEN[0][1][2:], "kind 1 is unknown to format version 2"),
        (b"\x02\x0d", "kind 13 is unknown to format version 2"),
        (HEAD + b"\3" + bytes(8), "step 3, which does not exist"),
        (HEAD, "does not decode"),
        (HEAD + b"\0" + bytes(9), "should have 8 bytes and has 9"),
        (HEAD + b"\2" + bytes(39), "should have 40 bytes and has 39"),
        (ITEMS + bytes(4), "at least 1"),
        (ITEMS + b"\0\0\0\2\2", "should have 2 items"),
        (ITEMS + b"\0\0\0\1\2\2", "should have 1 items"),
        (ITEMS + b"\0\0\0\1\3", "form 3, which does not exist"),
        (ITEMS + b"\0\0\0\1\1" + HASH[1:], "end before the 32 bytes"),
        (HEAD + b"\1" + struct.pack(">QI", 2**64 - 1, 1) + b"\2", "do not end below"),
        (an_item(item_leaf(8, 0)), "no leaf of that position"),
        (an_item(b"N" + item_leaf(9, 0)[1:]), "no leaf of that position"),
        (an_item(item_leaf(9, 255)), "outcome 255, which does not exist"),
        # An outcome of a later format version must not decode in a record of version 2: older readers skip it, and all must agree.
        (an_item(item_leaf(9, 4)), "outcome 4, which does not exist"),
        (an_item(item_leaf(9, 1)), "not those of its leaf"),
        (an_item(item_leaf(9, 0, CONFLICTS, 2), CONFLICTS + bytes(4)), "not those of its leaf"),
        (an_item(item_leaf(9, 1, CONFLICTS, 2), CONFLICTS[:-1] + b"\0" + bytes(4)), "not those of its leaf"),
        (an_item(item_leaf(9, 2, CONFLICTS, 2), CONFLICTS + bytes(4)), "another kind than its outcome"),
        (an_item(item_leaf(9, 1, OTHER_KIND, 2), OTHER_KIND + bytes(4)), "another kind than its outcome"),
        (an_item(item_leaf(9, 1, CONFLICTS[:69] * 2, 2), CONFLICTS[:69] * 2 + bytes(4)), "do not ascend"),
        (an_item(item_leaf(9, 0), b"\0\0\0\2" + STATE_2 + STATE_1), "do not ascend"),
        (an_item(item_leaf(9, 3), b"\0\0\0\1" + STATE_1), "is a rejection and consumes 1 states"),
        (an_item(item_leaf(9, 1, CONFLICTS, 2**32 - 1), CONFLICTS), "end before"),
        (ITEMS + b"\0\x10\0\0" + b"\2" * (1 << 20), "at most 1048576 bytes"),
        (b"\x02\x0c" + bytes(111), "should have 112 bytes and has 111"),
    ],
)
def test_a_malformed_salvage_or_trim_record_is_refused(data: bytes, why: str) -> None:
    """Each rule for the bytes of a salvage or trim record has an error that names the problem."""
    with pytest.raises(CorruptRecord, match=why):
        decode(data + SIGNATURE, ALL_FORMATS)


def test_a_decision_with_the_most_conflicts_fits_into_a_record() -> None:
    """A decision with 10,000 conflicts is an item of one record."""
    conflicts = b"".join([ID_1 + struct.pack(">I", n) + b"\0" + HASH for n in range(10_000)])
    record = SalvageItems(KEY_1, VIEW, 3, (Decided(item_leaf(3, 1, conflicts, 10_000), conflicts),))
    assert len(conflicts) == 10_000 * CONFLICT_BYTES
    assert decode(encode(record) + SIGNATURE, ALL_FORMATS) == record


def test_each_form_of_an_item_has_its_leaf() -> None:
    """A decision has its own leaf, a lost position the lost leaf, and a position with a hash alone none."""
    assert leaf_of(COMMITTED, 9) == COMMITTED.leaf
    assert (COMMITTED.transaction_id, COMMITTED.log_time_ms) == (ID_2, 5)
    assert leaf_of(Lost(), 258) == b"notary/lost/v1\n\0\0\0\0\0\0\1\2"
    assert leaf_of(Hashed(ROOT), 9) == b""


def test_an_item_may_have_the_last_position() -> None:
    """The size of a tree is below 2^64, so its last position is 2^64 - 2."""
    record = SalvageItems(KEY_1, VIEW, 2**64 - 2, (Lost(),))
    assert decode(encode(record) + SIGNATURE, ALL_FORMATS) == record


@given(RECORDS, st.integers(0, 255))
def test_only_active_versions_decode(record: OrderingRecord, version: int) -> None:
    """A record decodes only in a format version that is active at its offset."""
    value = bytes([version]) + encode(record)[1:] + SIGNATURE
    with pytest.raises(CorruptRecord, match=f"format version {version} is not active"):
        decode(value, frozenset(range(256)) - {version})


@given(u64, u64)
def test_batch_keys_sort_as_batches(incarnation: int, sequence: int) -> None:
    """A batch key is the incarnation and the sequence, big-endian, so that keys sort as batches do."""
    key = batch_key(incarnation, sequence)
    assert key == struct.pack(">QQ", incarnation, sequence)
    assert decode_batch_key(key) == (incarnation, sequence)


@given(st.none() | st.binary(max_size=40).filter(lambda key: len(key) != 16))
def test_batch_keys_of_other_lengths(key: bytes | None) -> None:
    """Anything but 16 bytes is no batch key."""
    with pytest.raises(CorruptRecord):
        decode_batch_key(key)
