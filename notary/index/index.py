"""The index itself: apply a step and make it durable in one write batch (R8); answer what clients ask."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
from rocksdict import Rdict, WriteBatch

from joiner import JoinerState, Ready
from notary.decide import decide
from notary.decision import Decision, Outcome, from_row, to_row
from notary.index import rows
from notary.index.store import DECISIONS, INDEX_FORMAT_VERSION, META, POSITIONS, STATES, IndexSettings, family, open_store
from ordering.errors import ConfigurationError, CorruptRecord, Fatal, NotaryError
from ordering.ids import StateRef, TransactionId
from ordering.log import ORDERING

_REMEDY = "Restore a snapshot, or move it away and let this worker replay the log"


@contextmanager
def _reading(directory: Path) -> Iterator[None]:
    """What cannot be read, or is no row, is `Fatal`: an index that lost something must not answer."""
    try:
        yield
    except CorruptRecord as problem:
        raise Fatal(f"the index {directory} is corrupt: {problem}. {_REMEDY}") from problem
    except NotaryError:
        raise
    except Exception as problem:  # rocksdict raises bare Exception
        raise Fatal(f"the index {directory} cannot be read: {problem}. {_REMEDY}") from problem


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

    def __init__(self, store: Rdict, directory: Path) -> None:
        """Use `Index.open`."""
        self._store = store
        self.directory = directory
        self._states, self._states_handle = family(store, STATES)
        self._decisions, self._decisions_handle = family(store, DECISIONS)
        self._positions, self._positions_handle = family(store, POSITIONS)
        self._meta, self._meta_handle = family(store, META)
        self._outcome_counts = [0] * len(Outcome)
        progress = self._meta.get(rows.PROGRESS_KEY)
        self._position_next, self._log_time_ms = rows.PROGRESS.unpack(progress) if progress else (0, 0)
        self._offsets_next = {rows.stream_of(key): rows.U64.unpack(value)[0] for key, value in self._rows_with(rows.OFFSET_PREFIX)}

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        notary_name: str,
        log_identity: str,
        payload_partitions: int,
        settings: IndexSettings | None = None,
    ) -> "Index":
        """The index in that directory, made if there is none; refuses one of another notary, log or newer format (`ConfigurationError`)."""
        store = open_store(directory, settings or IndexSettings())
        try:
            with _reading(directory):
                _check_owner(store, directory, notary_name, log_identity, payload_partitions)
                index = cls(store, directory)
            index._check_end()
            return index
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        """Close the store and let go of its directory's lock. Nothing is lost without it."""
        for family_store in (self._states, self._decisions, self._positions, self._meta):
            family_store.close()
        # The handles keep the store, and with it the lock, as long as they live.
        del self._states_handle, self._decisions_handle, self._positions_handle, self._meta_handle
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

    @property
    def judged_digest(self) -> bytes | None:
        """The digest of the last ordering record applied, None before the first."""
        digest: bytes | None = self._meta.get(rows.JUDGED_KEY)
        return digest

    def joiner_state(self, payload_partitions: int) -> JoinerState:
        """Where the joiner goes on (R8)."""
        offsets = {stream: self._offsets_next.get(stream, 0) for stream in (ORDERING, *range(payload_partitions))}
        with _reading(self.directory):
            lives = tuple([rows.life_of(key, value) for key, value in self._rows_with(rows.LIFE_PREFIX)])
        return JoinerState(offsets, self._log_time_ms, lives)

    def apply(self, ready: Ready) -> Sequence[Sequence[Decision]]:
        """Decide the step's batches; when this returns they are in the store, with the offsets that go with them."""
        decided, consumed = self._look_up(ready)
        result = decide(ready.batches, self._position_next, decided, consumed)
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        counts = self._outcome_counts
        states, decisions, positions = self._states_handle, self._decisions_handle, self._positions_handle
        for decision, request in result.new:
            id_ = decision.transaction_id
            counts[decision.outcome] += 1
            put(id_, to_row(decision), decisions)
            put(rows.U64.pack(decision.position), id_, positions)
            if decision.outcome is Outcome.COMMITTED and request.inputs:
                row = rows.state_row(id_, decision.position)
                for state in request.inputs:
                    put(state, row, states)
        position_next = self._position_next + len(result.new)
        meta = self._meta_handle
        put(rows.PROGRESS_KEY, rows.PROGRESS.pack(position_next, ready.log_time_ms), meta)
        if ready.judged is not None:
            put(rows.JUDGED_KEY, ready.judged.digest(), meta)
        for stream, offset in ready.offsets_next.items():
            if self._offsets_next.get(stream) != offset:
                put(rows.offset_key(stream), rows.U64.pack(offset), meta)
        for life in ready.lives:
            put(rows.life_key(life.incarnation), rows.life_row(life), meta)
        # A crash before this line: the step never was, its records are read again. After it: decided, for ever.
        try:
            self._store.write(batch)
        except Exception as problem:  # rocksdict raises bare Exception
            raise Fatal(f"the index {self.directory} cannot be written: {problem}. Free or replace its disk, then start again") from problem
        self._position_next, self._log_time_ms = position_next, ready.log_time_ms
        self._offsets_next.update(ready.offsets_next)
        return result.outcomes

    def take_outcome_counts(self) -> list[int]:
        """New decisions by outcome byte, since this was last asked."""
        counts, self._outcome_counts = self._outcome_counts, [0] * len(Outcome)
        return counts

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
        with _reading(self.directory):
            if ids:
                found = self._decisions.get(ids)
                decided = {id_: from_row(id_, row) for id_, row in zip(ids, found, strict=True) if row is not None}
            if states:
                found = self._states.get(states)
                consumed = {state: rows.state_of(row)[0] for state, row in zip(states, found, strict=True) if row is not None}
        return decided, consumed

    # ---- questions ----

    def decision(self, transaction_id: TransactionId) -> Decision | None:
        """The decision of a transaction, None when this worker has none."""
        with _reading(self.directory):
            row = self._decisions.get(transaction_id)
            return None if row is None else from_row(transaction_id, row)

    def transaction_at(self, position: int) -> TransactionId | None:
        """The transaction decided at that position."""
        with _reading(self.directory):
            id_: bytes | None = self._positions.get(rows.U64.pack(position))
        return id_

    def consumed(self, state: StateRef) -> Consumed | None:
        """Who consumed the state, None when nobody has."""
        with _reading(self.directory):
            row = self._states.get(state)
            return None if row is None else Consumed(*rows.state_of(row))

    def contents(self) -> Mapping[str, list[tuple[bytes, bytes]]]:
        """Every row of the families that are the same in all workers, for comparing small indexes row by row."""
        return {
            STATES: list(self._states.items()),
            DECISIONS: list(self._decisions.items()),
            POSITIONS: list(self._positions.items()),
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
                f" {_REMEDY}"
            )

    def _rows_with(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        for key, value in self._meta.items(from_key=prefix):
            if not key.startswith(prefix):
                break
            found.append((key, value))
        return found


def _check_owner(store: Rdict, directory: Path, notary_name: str, log_identity: str, payload_partitions: int) -> None:
    """Mark a new index as ours; refuse one that is not."""
    meta, handle = family(store, META)
    version = meta.get(rows.FORMAT_KEY)
    ours = {
        rows.NOTARY_KEY: notary_name.encode(),
        rows.LOG_KEY: log_identity.encode(),
        rows.PARTITIONS_KEY: rows.U32.pack(payload_partitions),
    }
    if version is None:
        batch = WriteBatch(raw_mode=True)
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
                f"the index {directory} is not ours: its {key.decode()} is {_show(key, there)}, wanted {_show(key, value)}."
                " Give this worker its own directory, or move the index away and let it replay the log"
            )


def _show(key: bytes, value: bytes | None) -> str:
    if value is None:
        return "missing"
    return str(rows.U32.unpack(value)[0]) if key == rows.PARTITIONS_KEY else repr(value.decode(errors="replace"))
