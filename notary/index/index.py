"""The index itself: apply a step and make it durable in one write batch (R8); answer what clients ask."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from joiner import JoinerState, LogState, Ready, RootSeen, VoteVoid
from notary.agreement import Agreement, observe
from notary.decide import decide
from notary.decision import Decision, Outcome, Pieces, completed, from_row, from_row_in_pieces, leaf, leaf_of_row, position_of_row, to_row
from notary.index import rows
from notary.index.rocks import IndexSettings, RocksStore
from notary.index.store import DECISIONS, INDEX_FORMAT_VERSION, META, POSITIONS, REMEDY, STATES, TILES, Family, Store, reading
from notary.index.tiles import StoredTree
from notary.tree import HASH_BYTES, TILE_WIDTH
from ordering.errors import Condemned, ConfigurationError, CorruptRecord, Fatal
from ordering.ids import StateRef, TransactionId
from ordering.log import ORDERING

T = TypeVar("T")
ROW_US: Final = 6
"""The look-up of a row."""
TILE_US: Final = 150
"""The reading of a full tile, with its 255 hashes."""
HASHED_BYTES_US: Final = 1_500
"""Bytes that are hashed in a microsecond."""


class Consumed(msgspec.Struct, frozen=True):
    """Who consumed a state, and at which position."""

    transaction_id: TransactionId
    position: int

    @property
    def by_hash(self) -> bytes:
        """What clients are told of the consumer: the SHA-256 of its transaction id."""
        return sha256(self.transaction_id).digest()


class Index:
    """One worker's index, open. Not for two threads: one worker, one loop."""

    def __init__(self, store: Store, directory: Path, worker_name: str) -> None:
        """Use `Index.open` or `Index.over`."""
        self._worker_name = worker_name
        self.broken = ""
        """Why memory and disk differ since a write that failed: until the next start nothing is told."""
        self._store = store
        self.directory = directory
        self._states, self._decisions, self._positions = [store.family(name) for name in (STATES, DECISIONS, POSITIONS)]
        self._tiles, self._meta = store.family(TILES), store.family(META)
        self._outcome_counts = [0] * len(Outcome)
        progress = self._meta.get(rows.PROGRESS_KEY)
        self._position_next, self._log_time_ms = rows.PROGRESS.unpack(progress) if progress else (0, 0)
        self._offsets_next = {rows.stream_of(key): rows.U64.unpack(value)[0] for key, value in self._rows_with(rows.OFFSET_PREFIX)}
        agreement = self._meta.get(rows.AGREEMENT_KEY)
        self.agreement = Agreement() if agreement is None else _decode(_agreement_decoder, agreement)
        self.tree = StoredTree(self._position_next, self._tiles, directory)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        notary_name: str,
        log_identity: str,
        worker_name: str = "",
        settings: IndexSettings | None = None,
    ) -> "Index":
        """The index in that directory, made if there is none; refuses one of another notary, log or newer format (`ConfigurationError`).

        `worker_name`: whose it is, to tell its own checkpoints from others'.
        """
        store = RocksStore.open(directory, settings or IndexSettings())
        return cls.over(
            store,
            directory,
            notary_name=notary_name,
            log_identity=log_identity,
            worker_name=worker_name,
        )

    @classmethod
    def over(cls, store: Store, directory: Path, *, notary_name: str, log_identity: str, worker_name: str = "") -> "Index":
        """The same on a store that is open, which is closed again if it is refused; `directory` is what messages call it."""
        try:
            with reading(directory):
                _check_owner(store, directory, notary_name, log_identity)
                index = cls(store, directory, worker_name)
            if index.agreement.condemned:
                raise Condemned(_condemned(directory, index.agreement.condemned))
            index._check_end()
            return index
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        """Close the store and let go of its directory's lock. Nothing is lost without it."""
        self._store.close()

    # ---- the step ----

    @property
    def position_next(self) -> int:
        """How many decisions there are: the position that the next one gets."""
        return int(self._position_next)

    @property
    def log_time_ms(self) -> int:
        """Log time after the last step."""
        return int(self._log_time_ms)

    def joiner_state(self) -> JoinerState:
        """Where the joiner goes on (R8, R10). Raises `Fatal` for rows that do not fit together."""
        with reading(self.directory):
            return joiner_state_of(self._meta, self._offsets_next, self._log_time_ms)

    def apply(self, ready: Ready) -> Sequence[Sequence[Decision]]:
        """Decide the step's batches; when this returns they are in the store, with the offsets that go with them."""
        decided, consumed = self._look_up(ready)
        result = decide(ready.batches, self._position_next, decided, consumed)
        batch = self._store.new_batch()
        put, handle = batch.put, self._store.handle
        counts = self._outcome_counts
        states, decisions, positions, tiles, meta = [handle(name) for name in (STATES, DECISIONS, POSITIONS, TILES, META)]
        for decision, request in result.new:
            id_ = decision.transaction_id
            counts[decision.outcome] += 1
            put(id_, to_row(decision), decisions)
            put(rows.U64.pack(decision.position), id_, positions)
            if decision.outcome is Outcome.COMMITTED:
                row = rows.state_row(id_, decision.position)
                for state in request.inputs:
                    put(state, row, states)
        self.tree.append([decision for decision, _ in result.new], lambda key, tile: put(key, tile, tiles))
        position_next = self._position_next + len(result.new)
        put(rows.PROGRESS_KEY, rows.PROGRESS.pack(position_next, ready.log_time_ms), meta)
        for effect in ready.effects:
            put(rows.effect_key(effect.seen), rows.effect_row(effect), meta)
        for stream, mark in ready.marks.items():
            put(rows.mark_key(stream), rows.mark_row(mark), meta)
        if ready.log_state is not None:
            put(rows.LOG_STATE_KEY, _encode(ready.log_state), meta)
        put(rows.DOUBTS_KEY, _encode((ready.agreed, ready.doubts)), meta)
        for stream, offset in ready.offsets_next.items():
            if self._offsets_next.get(stream) != offset:
                put(rows.offset_key(stream), rows.U64.pack(offset), meta)
        for life in ready.lives:
            put(rows.life_key(life.incarnation), rows.life_row(life), meta)
        agreement = self.agreement
        if ready.roots_seen or agreement.pending:
            with reading(self.directory):
                agreement = observe(agreement, self._places(ready, result.outcomes), self._worker_name, position_next, self.tree.root_at)
            if agreement != self.agreement:
                put(rows.AGREEMENT_KEY, _encode(agreement), meta)
        # A crash before this line: the step never was, its records are read again. After it: decided, for ever.
        try:
            self._store.write(batch)
        except Exception as problem:  # rocksdict raises bare Exception
            # The tree in memory is ahead of the rows now: nothing may be told from them any more.
            self.broken = f"the index {self.directory} cannot be written: {problem}. Free or replace its disk, then start again"
            raise Fatal(self.broken) from problem
        self._position_next, self._log_time_ms = position_next, ready.log_time_ms
        self._offsets_next.update(ready.offsets_next)
        self.agreement = agreement
        if agreement.condemned:
            self._flush()
            raise Condemned(_condemned(self.directory, agreement.condemned))
        return result.outcomes

    def take_outcome_counts(self) -> list[int]:
        """New decisions by outcome byte, since this was last asked."""
        counts, self._outcome_counts = self._outcome_counts, [0] * len(Outcome)
        return counts

    def condemn(self, why: str) -> Condemned:
        """Mark the index as wrong, on the disk, for ever; the error to stop with."""
        self.agreement = msgspec.structs.replace(self.agreement, condemned=why)
        batch = self._store.new_batch()
        batch.put(rows.AGREEMENT_KEY, _encode(self.agreement), self._store.handle(META))
        try:
            self._store.write(batch)
            self._flush()
        except Exception as problem:  # rocksdict raises bare Exception
            why += f" (and that cannot be written into it: {problem})"
        return Condemned(_condemned(self.directory, why))

    def _flush(self) -> None:
        """What condemns an index must outlive the machine: nothing of it is in the log."""
        self._store.flush()

    def audit(self, tile: int) -> Pieces[list[bytes]]:
        """Hold the rows of one tile's decisions against the tree, and the tile against the one above it, in pieces. Raises `Condemned`.

        What another program, or a disk, changed in old rows would else be noticed only by whoever asks for them.
        """
        first = tile * TILE_WIDTH
        return self.leaves_in_pieces(first, min(TILE_WIDTH, self.position_next - first))

    def _places(self, ready: Ready, outcomes: Sequence[Sequence[Decision]]) -> list[tuple[RootSeen | VoteVoid, int]]:
        """The step's roots, each with the size of our tree at its place."""
        sizes = [int(self._position_next)]
        for decisions in outcomes:
            sizes.append(max([sizes[-1], *[decision.position + 1 for decision in decisions]]))
        return [(seen, sizes[seen.batches_before]) for seen in ready.roots_seen]

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Rows that do not fit the tree, or are none, condemn the index, whoever meets them. What cannot be read now is only `Fatal`."""
        if self.broken:
            raise Fatal(self.broken)
        try:
            with reading(self.directory):
                yield
        except Fatal as problem:
            if isinstance(problem.__cause__, CorruptRecord):
                raise self.condemn(str(problem.__cause__)) from problem
            raise

    def _look_up(self, ready: Ready) -> tuple[dict[TransactionId, Decision], dict[StateRef, TransactionId]]:
        """What the store has on the step's ids and states: one batched get for each of the two families."""
        ids: list[TransactionId] = []
        states: list[StateRef] = []
        for batch in ready.batches:
            for request in batch.requests:
                ids.append(request.transaction_id)
                states += request.inputs
                states += request.references
        decided: dict[TransactionId, Decision] = {}
        consumed: dict[StateRef, TransactionId] = {}
        with self._sound():
            if ids:
                found = self._decisions.get(ids)
                decided = {id_: from_row(id_, row) for id_, row in zip(ids, found, strict=True) if row is not None}
                for decision in decided.values():
                    self.tree.check(decision.position, [leaf(decision)])
            if states:
                found = self._states.get(states)
                consumed = {state: rows.state_of(row)[0] for state, row in zip(states, found, strict=True) if row is not None}
        return decided, consumed

    # ---- questions ----

    def has_decided(self, transaction_ids: Sequence[TransactionId]) -> bool:
        """Whether this worker has decided all of these transactions. About 5 us each."""
        with self._sound():
            return None not in self._decisions.get(list(transaction_ids))

    def position(self, transaction_id: TransactionId) -> int | None:
        """The position of a transaction's decision, None when this worker has none."""
        with self._sound():
            row = self._decisions.get(transaction_id)
            return None if row is None else self._checked(transaction_id, row)

    def decision(self, transaction_id: TransactionId) -> Decision | None:
        """The decision of a transaction, None when this worker has none."""
        return completed(self.decision_in_pieces(transaction_id))

    def decision_in_pieces(self, transaction_id: TransactionId) -> Pieces[Decision | None]:
        """The same in pieces."""
        with self._sound():
            row = self._decisions.get(transaction_id)
            if row is None:
                yield ROW_US
                return None
            tiles_read = self.tree.tiles_read
            self._checked(transaction_id, row)
            yield ROW_US + len(row) // HASHED_BYTES_US + (self.tree.tiles_read - tiles_read) * TILE_US
            return (yield from from_row_in_pieces(transaction_id, row))

    def _checked(self, transaction_id: TransactionId, row: bytes) -> int:
        """The position of a decision row. What is answered must have its receipt: a row that was changed on the disk does not leave this
        worker."""
        position = position_of_row(transaction_id, row)
        self.tree.check(position, [leaf_of_row(transaction_id, row)])
        return position

    def leaves_at(self, first: int, count: int) -> list[bytes]:
        """The leaves of `count` positions that there are, from the first on, made from their rows and held against the tree."""
        return completed(self.leaves_in_pieces(first, count))

    def leaves_in_pieces(self, first: int, count: int) -> Pieces[list[bytes]]:
        """The same in pieces. A row may be long: 10,000 conflicts are 690 kB."""
        leaves: list[bytes] = []
        corrupt = f"the rows of the positions {first} to {first + count - 1} do not fit together"
        with self._sound():
            ids = self._positions.get([rows.U64.pack(at) for at in range(first, first + count)])
            yield count * ROW_US
            for id_ in ids:
                row = None if id_ is None else self._decisions.get(id_)
                if id_ is None or row is None:
                    raise CorruptRecord(corrupt)
                leaves.append(leaf_of_row(id_, row))
                yield ROW_US + len(row) // HASHED_BYTES_US
            self.tree.check(first, leaves)
        return leaves

    def tile(self, level: int, index: int, width: int) -> bytes:
        """The first `width` hashes of a tile that is there, held against the tile above."""
        with self._sound():
            return self.tree.sound_tile(level, index)[: width * HASH_BYTES]

    def transaction_at(self, position: int) -> TransactionId | None:
        """The transaction decided at that position."""
        with self._sound():
            id_: bytes | None = self._positions.get(rows.U64.pack(position))
        return id_

    def consumed(self, state: StateRef) -> Consumed | None:
        """Who consumed the state, None when nobody has."""
        with self._sound():
            row = self._states.get(state)
            return None if row is None else Consumed(*rows.state_of(row))

    def contents(self) -> Mapping[str, list[tuple[bytes, bytes]]]:
        """Every row of the families that are the same in all workers, for comparing small indexes row by row."""
        return {
            STATES: list(self._states.items()),
            DECISIONS: list(self._decisions.items()),
            POSITIONS: list(self._positions.items()),
            TILES: list(self._tiles.items()),
        }

    def _check_end(self) -> None:
        """The rows must end where the progress says: files that were lost or put back one by one do not go unnoticed."""
        position_next = self.position_next
        id_last = self.transaction_at(position_next - 1) if position_next else None
        decision_last = None if id_last is None else self.decision(id_last)
        if (
            self.transaction_at(position_next) is not None
            or (decision_last is None and position_next)
            or (decision_last is not None and decision_last.position != position_next - 1)
        ):
            raise Fatal(
                f"the index {self.directory} is damaged: its rows do not end at position {position_next}, where its progress stands."
                f" {REMEDY}"
            )

    def _rows_with(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        return _rows_with(self._meta, prefix)


# Sets in one order: the same log makes the same bytes in every process.
_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_agreement_decoder = msgspec.msgpack.Decoder(Agreement)
_log_state_decoder = msgspec.msgpack.Decoder(LogState)
_doubts_decoder = msgspec.msgpack.Decoder(tuple[int, dict[str, int]])


def _decode(decoder: msgspec.msgpack.Decoder[T], row: bytes) -> T:
    try:
        return decoder.decode(row)
    except msgspec.MsgspecError as problem:
        raise CorruptRecord(f"a row of the index's metadata does not decode: {problem}") from problem


def decode_log_state(row: bytes) -> LogState:
    """Decodes the row of the log state; `CorruptRecord` when it is none."""
    return _decode(_log_state_decoder, row)


def joiner_state_of(meta: Family, offsets_next: Mapping[int, int], log_time_ms: int) -> JoinerState:
    """The joiner's state of the rows of `META`; `CorruptRecord` when they do not fit together."""
    lives = tuple([rows.life_of(key, value) for key, value in _rows_with(meta, rows.LIFE_PREFIX)])
    effects = sorted([rows.effect_of(value) for _, value in _rows_with(meta, rows.EFFECT_PREFIX)], key=lambda effect: effect.seen)
    if effects and effects[-1].seen - effects[0].seen != len(effects) - 1:
        raise CorruptRecord("the rows of the last records that took effect have a gap")
    marks = dict([rows.mark_of(key, value) for key, value in _rows_with(meta, rows.MARK_PREFIX)])
    log_state, doubts = meta.get(rows.LOG_STATE_KEY), meta.get(rows.DOUBTS_KEY)
    agreed, open_doubts = (0, {}) if doubts is None else _decode(_doubts_decoder, doubts)
    return JoinerState(
        {ORDERING: 0, **offsets_next},
        log_time_ms,
        lives,
        None if log_state is None else decode_log_state(log_state),
        effects,
        marks,
        agreed,
        open_doubts,
    )


def _rows_with(meta: Family, prefix: bytes) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    for key, value in meta.items(from_key=prefix):
        if not key.startswith(prefix):
            break
        found.append((key, value))
    return found


def _condemned(directory: Path, why: str) -> str:
    return (
        f"the index {directory} is condemned: {why}. It never answers again: keep it aside as evidence and let this worker replay the log"
        " (docs/runbook.md, 'The roots of two workers differ')"
    )


def _check_owner(store: Store, directory: Path, notary_name: str, log_identity: str) -> None:
    """Mark a new index as ours; refuse one that is not."""
    meta, handle = store.family(META), store.handle(META)
    version = meta.get(rows.FORMAT_KEY)
    ours = {
        rows.NOTARY_KEY: notary_name.encode(),
        rows.LOG_KEY: log_identity.encode(),
    }
    if version is None:
        batch = store.new_batch()
        batch.put(rows.FORMAT_KEY, rows.U32.pack(INDEX_FORMAT_VERSION), handle)
        for key, value in ours.items():
            batch.put(key, value, handle)
        store.write(batch)
        return
    (found,) = rows.U32.unpack(version)
    if found != INDEX_FORMAT_VERSION:
        raise ConfigurationError(
            f"the index {directory} has format version {found} and this software reads {INDEX_FORMAT_VERSION}:"
            " use the software that wrote it, or move it away and let this worker replay the log"
        )
    for key, value in ours.items():
        there = meta.get(key)
        if there != value:
            raise ConfigurationError(
                f"the index {directory} is not ours: its {key.decode()} is {_show(there)}, wanted {_show(value)}."
                " Give this worker its own directory, or move the index away and let it replay the log"
            )


def _show(value: bytes | None) -> str:
    return "missing" if value is None else repr(value.decode(errors="replace"))
