"""The rows of workers' indexes (`Index.contents()`), compared with the replay of the log and with each other.

| family | key | value |
|---|---|---|
| `states` | 36-byte state | transaction id that consumed it, u64 position; of a reserved state the id's hash, 2^64 - 1 |
| `decisions` | transaction id | u64 position, i64 log time, u8 outcome, 69 bytes a conflict: state, u8 kind, hash of its consumer's id |
| `positions` | u64 position | transaction id; where a salvage knew none 1 and the leaf's hash, or 2 for a lost leaf |
| `tiles` | u8 level, u64 tile index | 32 bytes a hash |
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Any

from tests.checkers.records import OUTCOMES
from tests.checkers.replay import Replayed
from tests.checkers.tree import KINDS
from tests.checkers.violation import Kind, Violation

Rows = Mapping[str, Sequence[tuple[bytes, bytes]]]
"""The rows of an index by family: (key, value), each key once, sorted."""

FAMILIES = ("states", "decisions", "positions", "tiles")

HASHED, LOST_ROW = "01", "02"
RESERVED = 2**64 - 1
_DECISION = Struct(">QqB")
_STATE = Struct(">32sQ")
_TILE = Struct(">BQ")
_CONFLICT_BYTES = 36 + 1 + 32
_REASONS = {number: reason for reason, number in OUTCOMES.items()}
_KINDS = {number: kind for kind, number in KINDS.items()}


def violations(rows: Rows, replayed: Replayed, name: str = "index") -> list[Violation]:
    """Compare an index with the replay up to the index's size; returns the violations. `name` is the worker's."""
    size = height(rows)
    if size > replayed.size:
        return [Violation(Kind.AHEAD_OF_LOG, name, f"{size} positions", f"{replayed.size}, as many as the log decides")]
    found: list[Violation] = []
    decided = [decision for decision in replayed.decisions if decision["position"] < size]
    _hold(found, Kind.WRONG_DECISION, f"{name}, decisions", rows["decisions"], {d["transaction_id"]: d for d in decided}, _decision)
    ids = dict.fromkeys(range(size), LOST_ROW)
    ids |= {position: HASHED + hash_.hex() for position, hash_ in replayed.leaf_hashes.items() if position < size}
    ids |= {d["position"]: d["transaction_id"] for d in decided}
    _hold(found, Kind.WRONG_POSITION, f"{name}, positions", rows["positions"], ids, _position)
    consumed = {state: by for state, by in replayed.consumed.items() if by[1] < size}
    if size == replayed.size:  # a smaller index may have rows of a reservation that it has since seen consumed
        consumed |= {state: (by, RESERVED) for state, by in replayed.reserved.items()}
    _hold(found, Kind.WRONG_STATE, f"{name}, states", rows["states"], consumed, _state)
    _hold(found, Kind.WRONG_TILE, f"{name}, tiles", rows["tiles"], replayed.tree.tiles(size), _tile)
    return found


def all_violations(indexes: Mapping[str, Rows], replayed: Replayed) -> list[Violation]:
    """Compare the indexes of all workers with the replay. Rows equal to those of a sound index are not checked again."""
    found: list[Violation] = []
    sound: list[Rows] = []
    for name, rows in indexes.items():
        if any(all(rows[family] == good[family] for family in FAMILIES) for good in sound):
            continue
        mine = violations(rows, replayed, name)
        found += mine
        if not mine:
            sound.append(rows)
    return found


def differences(indexes: Mapping[str, Rows]) -> list[Violation]:
    """Compare indexes, by worker name, with the one that has read furthest, each up to its own size; returns the violations."""
    found: list[Violation] = []
    furthest = max(indexes, key=lambda name: height(indexes[name]), default="")
    for name, rows in indexes.items():
        if name == furthest:
            continue
        size = height(rows)
        for family in FAMILIES:
            wanted = dict(indexes[furthest][family])
            if size < height(indexes[furthest]):
                wanted = dict(_as_of(family, wanted, size))
            mine = dict(rows[family])
            for key in sorted(mine.keys() | wanted.keys()):
                if mine.get(key) != wanted.get(key):
                    place = f"{name} against {furthest}, {family} {key.hex()}"
                    found.append(Violation(Kind.INDEXES_DIFFER, place, mine.get(key), wanted.get(key)))
    return found


def height(rows: Rows) -> int:
    """Returns the number of decisions; it takes the larger of two families, since a row may be missing."""
    return max(len(rows["positions"]), len(rows["decisions"]))


def decisions_of(rows: Rows) -> list[dict[str, Any]]:
    """Returns an index's decisions as the contract's JSON objects, by position. Raises `ValueError` for a malformed row."""
    return sorted([_decision(key, value)[1] for key, value in rows["decisions"]], key=lambda decision: int(decision["position"]))


def consumed_of(rows: Rows) -> set[str]:
    """Returns an index's consumed states, as text."""
    return {_text(key) for key, _ in rows["states"]}


def _hold(
    found: list[Violation], kind: Kind, place: str, rows: Iterable[tuple[bytes, bytes]], wanted: Mapping[Any, Any], read: Any
) -> None:
    """Check that the rows are exactly the wanted ones."""
    missing = dict(wanted)
    for key, value in rows:
        try:
            named, actual = read(key, value)
        except (ValueError, KeyError) as problem:
            found.append(Violation(Kind.UNREADABLE, f"{place} {key.hex()}", value, f"a row ({problem})"))
            continue
        if (due := missing.pop(named, None)) != actual:
            found.append(Violation(kind, f"{place} {named}", actual, due))
    found += [Violation(kind, f"{place} {named}", None, due) for named, due in missing.items()]


def _decision(key: bytes, value: bytes) -> tuple[str, dict[str, Any]]:
    conflicts = []
    if len(key) != 32 or len(value) < _DECISION.size or (len(value) - _DECISION.size) % _CONFLICT_BYTES:
        raise ValueError(f"{len(value)} bytes")
    position, log_time, outcome = _DECISION.unpack_from(value)
    for at in range(_DECISION.size, len(value), _CONFLICT_BYTES):
        by = value[at + 37 : at + _CONFLICT_BYTES].hex()
        conflicts.append({"state": _text(value[at : at + 36]), "kind": _KINDS[value[at + 36]], "consumed_by": by})
    id_, reason = key.hex(), _REASONS[outcome]
    return id_, {
        "transaction_id": id_,
        "position": position,
        "outcome": "rejected" if reason else "committed",
        "reason": reason,
        "conflicts": conflicts,
        "log_time": log_time,
    }


def _position(key: bytes, value: bytes) -> tuple[int, str]:
    has_id, has_hash, is_lost = len(value) == 32, len(value) == 33 and value.hex().startswith(HASHED), value.hex() == LOST_ROW
    if len(key) != 8 or not (has_id or has_hash or is_lost):
        raise ValueError(f"{len(value)} bytes under {len(key)}")
    return int.from_bytes(key, "big"), value.hex()


def _state(key: bytes, value: bytes) -> tuple[str, tuple[str, int]]:
    if len(key) != 36 or len(value) != _STATE.size:
        raise ValueError(f"{len(value)} bytes under {len(key)}")
    id_, position = _STATE.unpack(value)
    return _text(key), (id_.hex(), position)


def _tile(key: bytes, value: bytes) -> tuple[tuple[int, int], bytes]:
    if len(key) != _TILE.size:
        raise ValueError(f"a key of {len(key)} bytes")
    level, index = _TILE.unpack(key)
    return (level, index), value


def _text(state: bytes) -> str:
    return f"{state[:32].hex()}:{int.from_bytes(state[32:], 'big')}"


def _as_of(family: str, rows: Mapping[bytes, bytes], size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields the rows that the index had at `size` positions, from its present rows."""
    for key, value in rows.items():
        if family == "tiles":
            level, index = _TILE.unpack(key)
            width = min(256, (size >> 8 * level) - 256 * index)
            if width > 0:
                yield key, value[: 32 * width]
        else:
            position = {"positions": key, "decisions": value[:8], "states": value[32:]}[family]
            if int.from_bytes(position, "big") < size:
                yield key, value
