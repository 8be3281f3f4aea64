"""The rows of `META` in an open store (formats in `rows`): the owner, the offsets, the joiner's state, the comparison of roots."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from joiner import JoinerState, LogState
from notary.agreement import Agreement
from notary.index import rows
from notary.index.store import INDEX_FORMAT_VERSION, META, Family, Store
from ordering.errors import ConfigurationError, CorruptRecord
from ordering.log import ORDERING
from ordering.salvage import Item, decode_items

T = TypeVar("T")

encode = msgspec.msgpack.Encoder(order="deterministic").encode
"""Encodes a value as MessagePack. Sets are encoded in one order, so that the same log makes the same bytes in every process."""
_agreement_decoder = msgspec.msgpack.Decoder(Agreement)
_log_state_decoder = msgspec.msgpack.Decoder(LogState)
_suspicions_decoder = msgspec.msgpack.Decoder(tuple[int, dict[str, int]])


def _decode(decoder: msgspec.msgpack.Decoder[T], row: bytes) -> T:
    try:
        return decoder.decode(row)
    except msgspec.MsgspecError as problem:
        raise CorruptRecord(f"a row of the index's metadata does not decode: {problem}") from problem


def decode_agreement(row: bytes | None) -> Agreement:
    """Decodes the row of the comparison of roots; without a row nothing was compared yet. Raises `CorruptRecord`."""
    return Agreement() if row is None else _decode(_agreement_decoder, row)


def decode_log_state(row: bytes) -> LogState:
    """Decodes the row of the log state. Raises `CorruptRecord`."""
    return _decode(_log_state_decoder, row)


def offsets_next_of(meta: Family) -> dict[int, int]:
    """Decodes the offsets to resume at, by topic-partition, from the rows of `META`."""
    return {rows.partition_of(key): rows.U64.unpack(value)[0] for key, value in rows_with(meta, rows.OFFSET_PREFIX)}


def joiner_state_of(meta: Family, offsets_next: Mapping[int, int], log_time_ms: int) -> JoinerState:
    """Decodes the joiner's state from the rows of `META`. Raises `CorruptRecord` when they are inconsistent."""
    incarnations = tuple([rows.incarnation_of(key, value) for key, value in rows_with(meta, rows.INCARNATION_PREFIX)])
    effects = sorted([rows.effect_of(value) for _, value in rows_with(meta, rows.EFFECT_PREFIX)], key=lambda effect: effect.seen)
    if effects and effects[-1].seen - effects[0].seen != len(effects) - 1:
        raise CorruptRecord("the rows of the last records that took effect have a gap")
    marks = dict([rows.mark_of(key, value) for key, value in rows_with(meta, rows.MARK_PREFIX)])
    log_state, suspicions = meta.get(rows.LOG_STATE_KEY), meta.get(rows.SUSPICIONS_KEY)
    agreed, open_suspicions = (0, {}) if suspicions is None else _decode(_suspicions_decoder, suspicions)
    state = None if log_state is None else decode_log_state(log_state)
    items: list[Item] = []
    for _, value in rows_with(meta, rows.ITEMS_PREFIX):
        first, some = decode_items(value)
        if state is None or state.salvage is None or first != state.salvage[0] + len(items):
            raise CorruptRecord(f"the rows of a salvage's items have a gap before position {first}")
        items += some
    if state is not None and state.salvage is not None and state.salvage[1] - state.salvage[0] != len(items):
        raise CorruptRecord(f"the rows of a salvage's items end before position {state.salvage[1]}")
    return JoinerState({ORDERING: 0, **offsets_next}, log_time_ms, incarnations, state, effects, marks, agreed, open_suspicions, items)


def rows_with(meta: Family, prefix: bytes) -> list[tuple[bytes, bytes]]:
    """Returns the rows whose key begins with `prefix`, in order."""
    found: list[tuple[bytes, bytes]] = []
    for key, value in meta.items(from_key=prefix):
        if not key.startswith(prefix):
            break
        found.append((key, value))
    return found


def check_owner(store: Store, directory: Path, notary_name: str, log_identity: str) -> None:
    """Write notary, log and format version into a new index. Raises `ConfigurationError` for an index in which one of them differs."""
    meta, handle = store.family(META), store.handle(META)
    version = meta.get(rows.FORMAT_KEY)
    ours = {rows.NOTARY_KEY: notary_name.encode(), rows.LOG_KEY: log_identity.encode()}
    if version is None:
        batch = store.new_batch()
        batch.put(rows.FORMAT_KEY, rows.U32.pack(INDEX_FORMAT_VERSION), handle)
        for key, value in ours.items():
            batch.put(key, value, handle)
        store.write(batch)
        return
    format_version(version, directory, ", or move the index away and let this worker replay the log")
    for key, value in ours.items():
        there = meta.get(key)
        if there != value:
            raise ConfigurationError(
                f"the index {directory} belongs to another log or worker: its {key.decode()} is {_show(there)}, wanted {_show(value)}."
                " Give this worker its own directory, or move the index away and let it replay the log"
            )


def format_version(row: bytes, directory: Path, otherwise: str = "") -> int:
    """Decodes the format version. Raises `ConfigurationError` for another one than this software's; `otherwise` adds to its remedy."""
    (found,) = rows.U32.unpack(row)
    if found != INDEX_FORMAT_VERSION:
        raise ConfigurationError(
            f"the index {directory} has format version {found} and this software reads {INDEX_FORMAT_VERSION}:"
            f" use the software that wrote it{otherwise}"
        )
    return int(found)


def _show(value: bytes | None) -> str:
    return "missing" if value is None else repr(value.decode(errors="replace"))
