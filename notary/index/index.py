"""`Index`: applies a step in one write batch (R8) and answers queries."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from joiner import JoinerState, OrderedBatch, Ready
from notary.agreement import Agreement, observe
from notary.decide import decide
from notary.decision import (
    Decision,
    Outcome,
    from_row,
    from_row_in_pieces,
    hashes_of,
    leaf,
    leaf_of_row,
    position_of_row,
    row_of_item,
    to_row,
)
from notary.index import rows
from notary.index.meta import check_owner, decode_agreement, encode, joiner_state_of, offsets_next_of, rows_with
from notary.index.rocks import IndexSettings, RocksStore
from notary.index.roots import ComparedRoots, Vote, votes_of
from notary.index.store import (
    DECISIONS,
    FAMILIES,
    META,
    POSITIONS,
    REMEDY,
    STATES,
    TILES,
    Reading,
    Store,
    WriteBatch,
    raise_fatal,
)
from notary.index.tiles import StoredTree
from notary.tree import HASH_BYTES, TILE_WIDTH, leaf_hash
from ordering.errors import CorruptRecord, Fatal, FatalCode, Quarantined
from ordering.ids import StateRef, TransactionId
from ordering.pieces import Pieces, completed
from ordering.salvage import Decided, Item, encode_items, leaf_of
from ordering.store import OPEN_FILES
from payload import Request

ROW_US: Final = 6
"""The time to look up a row."""
TILE_US: Final = 150
"""The time to read a full tile and compute its 255 inner hashes."""
LOOKED_UP_AT_ONCE: Final = 1_000
"""The number of rows that `prepare` looks up in a piece."""
HASHED_BYTES_PER_US: Final = 1_500


class Consumed(msgspec.Struct, frozen=True):
    """The consumer of a state: SHA-256 of its transaction id, and its position; None for a reserved state (R11)."""

    by_hash: bytes
    position: int | None


class Found(msgspec.Struct, frozen=True):
    """Rows read for a step: decisions by transaction id, consumers by state, and the hashes of consumers by reserved state."""

    decided: dict[TransactionId, Decision]
    consumed: dict[StateRef, TransactionId]
    reserved: dict[StateRef, bytes]


class Index:
    """One worker's open index. Not thread-safe: only the worker's event loop uses it."""

    def __init__(self, store: Store, directory: Path, worker_name: str) -> None:
        """Use `Index.open` or `Index.over`."""
        self._worker_name = worker_name
        self.broken: Fatal | None = None
        """The error of a failed step, after which memory and disk differ. Every query fails with it until a restart."""
        self._store = store
        self.directory = directory
        self._states, self._decisions, self._positions = [store.family(name) for name in (STATES, DECISIONS, POSITIONS)]
        self._tiles, self._meta = store.family(TILES), store.family(META)
        self.log_identity = (self._meta.get(rows.LOG_KEY) or b"").decode()
        """The identity of the log that the index was made from, for messages and snapshots."""
        self._outcome_counts = [0] * len(Outcome)
        progress = self._meta.get(rows.PROGRESS_KEY)
        self._position_next, self._log_time_ms = rows.PROGRESS.unpack(progress) if progress else (0, 0)
        self._offsets_next = offsets_next_of(self._meta)
        compared, before = decode_agreement(self._meta.get(rows.AGREEMENT_KEY)), self._meta.get(rows.AGREEMENT_BEFORE_KEY)
        self._roots = ComparedRoots(compared, compared if before is None else decode_agreement(before))
        # Set by `prepare` for the next step: the requests, the number of decisions at that time, and the rows found.
        self._prepared: tuple[Sequence[Request], int, Found] | None = None
        self.tree = StoredTree(self._position_next, self._tiles, directory)

    @classmethod
    def open(
        cls, directory: Path, *, notary_name: str, log_identity: str, worker_name: str = "", settings: IndexSettings | None = None
    ) -> "Index":
        """Open the index in that directory; create it if it is missing.

        Raises `ConfigurationError` for an index of another notary, log or format version, `Quarantined` for a quarantined one, and `Fatal`
        for a damaged one. `worker_name` is the owner of the index: its own checkpoints do not confirm its root.
        """
        store = RocksStore.open(directory, settings or IndexSettings())
        return cls.over(store, directory, notary_name=notary_name, log_identity=log_identity, worker_name=worker_name)

    @classmethod
    def over(cls, store: Store, directory: Path, *, notary_name: str, log_identity: str, worker_name: str = "") -> "Index":
        """Open the index in a store that is open already; on an error the store is closed. Messages name `directory`."""
        try:
            with Reading(directory):
                check_owner(store, directory, notary_name, log_identity)
                index = cls(store, directory, worker_name)
            if index.agreement.quarantined:
                raise Quarantined(_quarantined_text(directory, index.agreement.quarantined))
            index._check_end()
            return index
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        """Close the store and release the lock of its directory. A process that ends without this loses nothing."""
        self._store.close()

    @property
    def filter_bytes(self) -> int:
        """Bytes that the bloom filters of all rows need, about. Once they do not fit into `cache_bytes`, requests take longer."""
        return self._store.filter_bytes

    @property
    def cache_bytes(self) -> int:
        """The most bytes of filters and blocks that the index keeps in memory (`index.cache_bytes`)."""
        return self._store.cache_bytes

    # ---- the step ----

    @property
    def position_next(self) -> int:
        """The number of decisions, which is also the position of the next one."""
        return int(self._position_next)

    @property
    def log_time_ms(self) -> int:
        """Log time after the last step."""
        return int(self._log_time_ms)

    @property
    def agreement(self) -> Agreement:
        """The comparison of this worker's roots with the others' (R9)."""
        return self._roots.agreement

    def joiner_state(self) -> JoinerState:
        """Returns the state from which the joiner resumes (R8, R10). Raises `Fatal` when the rows are inconsistent."""
        with Reading(self.directory):
            return joiner_state_of(self._meta, self._offsets_next, self._log_time_ms)

    def prepare(self, requests: Sequence[Request]) -> Iterator[None]:
        """Look up, in pieces, the rows that `apply` needs for a step whose only batch has these requests (the same object)."""
        self._prepared = None
        position_next, found = self._position_next, Found({}, {}, {})
        for ids, states in _pieces_of(requests, LOOKED_UP_AT_ONCE):
            self._look_up(ids, states, found)
            yield
        if position_next == self._position_next:
            self._prepared = requests, position_next, found

    def apply(self, ready: Ready) -> Sequence[Sequence[Decision]]:
        """Decide the step's batches, and write the decisions and the step's offsets in one write batch.

        Returns the decisions of each batch, in the order of its requests. Raises `Fatal` when the batch cannot be written or rows cannot be
        read. Raises `Quarantined` when a row or this step's checkpoints show that the index is wrong.
        """
        found = self._found(ready.batches)
        result = decide(ready.batches, self._position_next, found.decided, found.consumed, found.reserved)
        batch = self._store.new_batch()
        put, handle = batch.put, self._store.handle
        counts = self._outcome_counts
        positions, tiles, meta = handle(POSITIONS), handle(TILES), handle(META)
        batch.set_default_column_family(handle(DECISIONS))
        for decision, _ in result.new:
            counts[decision.outcome] += 1
            batch[decision.transaction_id] = to_row(decision)
            put(rows.U64.pack(decision.position), decision.transaction_id, positions)
        batch.set_default_column_family(handle(STATES))
        for decision, request in result.new:
            if decision.outcome is Outcome.COMMITTED:
                row = rows.state_row(decision.transaction_id, decision.position)
                for state in request.inputs:
                    batch[state] = row
        hashes = [leaf_hash(leaf(decision)) for decision, _ in result.new] or hashes_of(self._position_next, ready.salvaged)
        self._put_salvage(ready, batch)
        try:
            self.tree.append(hashes, lambda key, tile: put(key, tile, tiles))
            position_next = self._position_next + len(hashes)
            put(rows.PROGRESS_KEY, rows.PROGRESS.pack(position_next, ready.log_time_ms), meta)
            self._put_joiner_state(ready, batch)
            votes = votes_of(ready, result.outcomes, self._position_next)
            roots = self._roots.after(ready, votes, lambda agreement, votes: self._compared(agreement, votes, position_next))
            if roots.agreement != self.agreement or roots.before != self._roots.before:
                put(rows.AGREEMENT_KEY, encode(roots.agreement), meta)
                put(rows.AGREEMENT_BEFORE_KEY, encode(roots.before), meta)
            # A crash before this line leaves nothing of the step: its records are read again. After this line the decisions are final.
            try:
                self._store.write(batch)
            except Exception as problem:  # rocksdict raises bare Exception
                remedy = "Raise the limit of open files" if OPEN_FILES in str(problem) else "Free or replace its disk"
                why = f"the index {self.directory} cannot be written: {problem}. {remedy}, then start again"
                raise Fatal(FatalCode.INDEX_UNWRITABLE, why) from problem
        except BaseException as problem:
            # The tree in memory may be ahead of the rows now, so no more queries may be answered. `broken` gets a copy of the error, since
            # the traceback of the error itself would keep the store open after `close`.
            self.broken = (
                Fatal(problem.code, str(problem))
                if isinstance(problem, Fatal)
                else Fatal(FatalCode.INDEX_UNWRITABLE, f"a step could not be written into the index {self.directory}: {problem!r}")
            )
            raise
        self._position_next, self._log_time_ms = position_next, ready.log_time_ms
        self._offsets_next.update(ready.offsets_next)
        self._roots = roots
        if why := self.agreement.quarantined:
            raise self.quarantine(why)  # syncs the row: the log cannot restore it
        return result.outcomes

    def _put_joiner_state(self, ready: Ready, batch: WriteBatch) -> None:
        """Add the rows from which the joiner resumes (R8, R10), as far as the step changed them."""
        put, meta = batch.put, self._store.handle(META)
        for effect in ready.effects:
            put(rows.effect_key(effect.seen), rows.effect_row(effect), meta)
        for partition, mark in ready.marks.items():
            put(rows.mark_key(partition), rows.mark_row(mark), meta)
        if ready.log_state is not None:
            put(rows.LOG_STATE_KEY, encode(ready.log_state), meta)
        put(rows.SUSPICIONS_KEY, encode((ready.agreed, ready.suspicions)), meta)
        for partition, offset in ready.offsets_next.items():
            if self._offsets_next.get(partition) != offset:
                put(rows.offset_key(partition), rows.U64.pack(offset), meta)
        for changed in ready.incarnations:
            put(rows.incarnation_key(changed.incarnation), rows.incarnation_row(changed), meta)

    def _put_salvage(self, ready: Ready, batch: WriteBatch) -> None:
        """Add the rows of a step of a salvage (R11): the items of its record until the salvage is done; then all items as decided."""
        assert not (ready.salvaged and ready.batches)
        if not (ready.salvaged or ready.items_dropped or ready.items):
            return
        states, decisions, positions, meta = [self._store.handle(name) for name in (STATES, DECISIONS, POSITIONS, META)]
        if ready.items_dropped:
            for key, _ in rows_with(self._meta, rows.ITEMS_PREFIX):
                batch.delete(key, meta)
        if ready.items is not None:
            batch.put(rows.items_key(ready.items.first), encode_items(ready.items.first, ready.items.items), meta)
        state_rows: dict[StateRef, bytes] = {}
        for position, item in enumerate(ready.salvaged, self._position_next):
            batch.put(rows.U64.pack(position), rows.position_row(item), positions)
            if not isinstance(item, Decided):
                continue
            id_, row = item.transaction_id, row_of_item(item)
            batch.put(id_, row, decisions)
            state_rows.update(dict.fromkeys(item.inputs, rows.state_row(id_, position)))
            cited = [conflict for conflict in from_row(id_, row).conflicts if conflict.state not in state_rows]
            if cited:
                with self._guard:
                    found = self._states.get([conflict.state for conflict in cited])
                state_rows.update(
                    {
                        conflict.state: rows.reserved_row(conflict.consumed_by)
                        for conflict, known in zip(cited, found, strict=True)
                        if known is None
                    }
                )
        for state, row in state_rows.items():
            batch.put(state, row, states)

    def take_outcome_counts(self) -> list[int]:
        """Returns the number of new decisions for each outcome byte since the last call."""
        counts, self._outcome_counts = self._outcome_counts, [0] * len(Outcome)
        return counts

    def quarantine(self, why: str) -> Quarantined:
        """Quarantine the index: mark it as wrong on the disk, for ever. Returns the error with which the worker must stop."""
        self._roots = self._roots.quarantined(why)
        batch = self._store.new_batch()
        batch.put(rows.AGREEMENT_KEY, encode(self.agreement), self._store.handle(META))
        try:
            self._store.write(batch)
            self._store.flush()
        except Exception as problem:  # rocksdict raises bare Exception
            why += f" (this mark cannot be written into the index: {problem})"
        return Quarantined(_quarantined_text(self.directory, why))

    def audit(self, tile: int) -> Pieces[list[bytes]]:
        """Compare, in pieces, the rows of one tile's decisions with the tree, and the tile with the one above it. Raises `Quarantined`.

        Without this audit, a changed row of an old decision would be noticed only when a client asks for it.
        """
        first = tile * TILE_WIDTH
        return self.leaves_in_pieces(first, min(TILE_WIDTH, self.position_next - first))

    def _compared(self, agreement: Agreement, votes: Sequence[Vote], size: int) -> Agreement:
        """Returns the agreement with these votes, compared with our tree of that size."""
        if votes or agreement.pending:
            with Reading(self.directory):
                agreement = observe(agreement, votes, self._worker_name, size, self.tree.root_at)
        return msgspec.structs.replace(agreement, offset_next=votes[-1][0].offset + 1) if votes else agreement

    @property
    def _guard(self) -> "_Guard":
        return _Guard(self)

    def _found(self, batches: Sequence[OrderedBatch]) -> Found:
        """Returns the rows of the batches' transaction ids and states, as they are before the step."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None and len(batches) == 1:
            requests, position_next, found = prepared
            # Rows of `decisions` and `states` change only with a new decision.
            if requests is batches[0].requests and position_next == self._position_next:
                return found
        found = Found({}, {}, {})
        ids: list[TransactionId] = []
        states: list[StateRef] = []
        for batch in batches:
            for request in batch.requests:
                ids.append(request.transaction_id)
                states += request.inputs
                states += request.references
        self._look_up(ids, states, found)
        return found

    def _look_up(self, ids: list[TransactionId], states: list[StateRef], found: Found) -> None:
        """Add to `found` which of these ids are decided and which states consumed; one batched get for each of the two families."""
        with self._guard:
            if ids:
                read = self._decisions.get(ids)
                if read.count(None) < len(ids):  # most ids and states are new: counting is faster than a loop
                    decided = {id_: from_row(id_, row) for id_, row in zip(ids, read, strict=True) if row is not None}
                    for decision in decided.values():
                        self.tree.check(decision.position, [leaf(decision)])
                    found.decided.update(decided)
            if states:
                read = self._states.get(states)
                if read.count(None) < len(states):
                    for state, row in zip(states, read, strict=True):
                        if row is None:
                            continue
                        consumer, position = rows.state_of(row)
                        (found.reserved if position == rows.RESERVED else found.consumed)[state] = consumer

    # ---- queries ----

    def has_decided(self, transaction_ids: Sequence[TransactionId]) -> bool:
        """Returns True if this worker has decided all of these transactions. About 5 us each."""
        with self._guard:
            return None not in map(self._decisions.get, transaction_ids)

    def position(self, transaction_id: TransactionId) -> int | None:
        """Returns the position of a transaction's decision; None when this worker has none."""
        with self._guard:
            row = self._decisions.get(transaction_id)
            return None if row is None else self._checked(transaction_id, row)

    def decision(self, transaction_id: TransactionId) -> Decision | None:
        """Returns the decision of a transaction; None when this worker has none. Raises `Quarantined` or `Fatal`."""
        return completed(self.decision_in_pieces(transaction_id))

    def decision_in_pieces(self, transaction_id: TransactionId) -> Pieces[Decision | None]:
        """Does the work of `decision` in pieces."""
        with self._guard:
            row = self._decisions.get(transaction_id)
            if row is None:
                yield ROW_US
                return None
            tiles_read = self.tree.tiles_read
            self._checked(transaction_id, row)
            yield ROW_US + len(row) // HASHED_BYTES_PER_US + (self.tree.tiles_read - tiles_read) * TILE_US
            return (yield from from_row_in_pieces(transaction_id, row))

    def _checked(self, transaction_id: TransactionId, row: bytes) -> int:
        """Returns the position of a decision row, after a comparison with the tree.

        Every answer must have its receipt, so a row that was changed on the disk must not leave this worker.
        """
        position = position_of_row(transaction_id, row)
        self.tree.check(position, [leaf_of_row(transaction_id, row)])
        return position

    def leaves_in_pieces(self, first: int, count: int) -> Pieces[list[bytes]]:
        """Returns, in pieces, the leaves of `count` positions from `first` on, made from their rows and compared with the tree.

        A leaf is empty where a salvage restored only its hash. A row may be long (10,000 conflicts are 690 kB), so rows are read one at a
        time.

        Audits and monitors read all rows of the tree, at places far apart. In the cache, their blocks would displace the bloom filters.
        """
        leaves: list[bytes] = []
        corrupt = f"a row of the positions {first} to {first + count - 1} is missing"
        with self._guard:
            ids = self._positions.get_in_passing([rows.U64.pack(at) for at in range(first, first + count)])
            yield count * ROW_US
            hashes: list[bytes] = []
            for at, id_ in enumerate(ids, first):
                item = None if id_ is None else rows.undecided_of(id_)
                if item is not None:
                    hashes += hashes_of(at, [item])
                    leaves.append(leaf_of(item, at))
                    continue
                row = None if id_ is None else self._decisions.get_in_passing(id_)
                if id_ is None or row is None:
                    raise CorruptRecord(corrupt)
                leaves.append(leaf_of_row(id_, row))
                hashes.append(leaf_hash(leaves[-1]))
                yield ROW_US + len(row) // HASHED_BYTES_PER_US
            self.tree.check_hashes(first, hashes)
        return leaves

    def tile(self, level: int, index: int, width: int) -> bytes:
        """Returns the first `width` hashes of a stored tile, after comparing it with the tile above it."""
        with self._guard:
            return self.tree.sound_tile(level, index)[: width * HASH_BYTES]

    def transaction_at(self, position: int) -> TransactionId | None:
        """Returns the id of the transaction decided at that position; None if the position has none, or if the id was lost (R11)."""
        with self._guard:
            row = self._positions.get(rows.U64.pack(position))
            return None if row is None or rows.undecided_of(row) is not None else row

    def undecided(self) -> dict[int, Item]:
        """Returns the positions without a decision, after salvages (R11). It reads the rows of all positions."""
        with self._guard:
            found = [(key, rows.undecided_of(row)) for key, row in self._positions.items()]
        return {rows.U64.unpack(key)[0]: item for key, item in found if item is not None}

    def consumed(self, state: StateRef) -> Consumed | None:
        """Returns the transaction that consumed the state; None while the state is neither consumed nor reserved."""
        with self._guard:
            row = self._states.get(state)
            if row is None:
                return None
            consumer, position = rows.state_of(row)
            return Consumed(consumer, None) if position == rows.RESERVED else Consumed(sha256(consumer).digest(), position)

    def contents(self) -> Mapping[str, list[tuple[bytes, bytes]]]:
        """Returns every row of the families that are the same in all workers, to compare small indexes row by row."""
        return {name: list(self._store.family(name).items()) for name in FAMILIES if name != META}

    def _check_end(self) -> None:
        """Raise `Fatal` unless the rows end at the position of the progress row. This detects single files that were lost or restored."""
        position_next = self.position_next
        has_last = position_next == 0 or self._has_rows_at(position_next - 1)
        if not has_last or self._positions.get(rows.U64.pack(position_next)) is not None:
            raise Fatal(
                FatalCode.INDEX_DAMAGED,
                f"the index {self.directory} is damaged: its rows do not end at position {position_next}, which its progress row names."
                f" {REMEDY}",
            )

    def _has_rows_at(self, position: int) -> bool:
        """Returns True if the row of that position is there, and the row of its decision, if it has one (R11)."""
        row = self._positions.get(rows.U64.pack(position))
        if row is None or rows.undecided_of(row) is not None:
            return row is not None
        decision = self.decision(row)
        return decision is not None and decision.position == position


class _Guard:
    """Guards reads: a row that is malformed or contradicts the tree quarantines the index (`Quarantined`).

    A row that cannot be read now raises `Fatal` only.
    """

    __slots__ = ("_index",)

    def __init__(self, index: Index) -> None:
        self._index = index

    def __enter__(self) -> None:
        if (broken := self._index.broken) is not None:
            raise Fatal(broken.code, str(broken))

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        if problem is None or isinstance(problem, Quarantined):
            return
        corrupt = problem.__cause__ if isinstance(problem, Fatal) else problem
        if isinstance(corrupt, CorruptRecord):
            raise self._index.quarantine(str(corrupt)) from problem
        raise_fatal(self._index.directory, problem)


def _pieces_of(requests: Sequence[Request], rows_max: int) -> Iterator[tuple[list[TransactionId], list[StateRef]]]:
    """Yields the transaction ids and states of the requests, at most `rows_max` at once: one request may have 10,000 states."""
    ids: list[TransactionId] = []
    states: list[StateRef] = []
    for request in requests:
        ids.append(request.transaction_id)
        if len(ids) + len(states) + len(request.inputs) + len(request.references) < rows_max:
            states += request.inputs
            states += request.references
            continue
        for of_request in (request.inputs, request.references):
            at = 0
            while at < len(of_request):
                if len(ids) + len(states) >= rows_max:
                    yield ids, states
                    ids, states = [], []
                taken = of_request[at : at + rows_max - len(ids) - len(states)]
                states += taken
                at += len(taken)
        if len(ids) + len(states) >= rows_max:
            yield ids, states
            ids, states = [], []
    if ids or states:
        yield ids, states


def _quarantined_text(directory: Path, why: str) -> str:
    return (
        f"the index {directory} is quarantined: {why}. It never answers again: move it away as evidence, and let this worker replay the log"
        " (docs/runbook.md, 'The roots of two workers differ')"
    )
