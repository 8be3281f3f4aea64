"""`viewing`: a consistent snapshot of an index, read while its worker goes on writing.

RocksDB's two ways to open a store that another process writes do not give a consistent snapshot. A read-only instance reads the list of
table files (MANIFEST) first and the write-ahead logs later. If a flush happens in between, its write-ahead log is deleted, and its table
file is not in the list that was read. The rows of that flush are silently missing, in some families and not in others. A secondary instance
reads in the same order, and `Checkpoint` needs the worker's own handle.

So `viewing` first makes hard links to the files, in a folder inside the index, and opens the read-only instance on the links:

- The table files that the MANIFEST lists never change; other table files may be incomplete. A write-ahead log only grows, and RocksDB
  reads it up to the end of a write batch (R8).
- The MANIFEST grows too, so it is copied, up to the length that it had before the links were made.
- The files form a snapshot only if no flush or compaction was recorded, and no write-ahead log begun, while they were linked. So `_link`
  compares the MANIFEST and the names of the logs before and after, and links again if they changed. Linking takes milliseconds.

An open instance has all of its files open, so the links are removed once it is open. Files that the worker deletes meanwhile take disk
space only while the view is open, even if this process is killed. If it is killed before it removes the links, a later view removes them.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rocksdict import Rdict

from joiner import JoinerState
from notary.decision import Decision, from_row
from notary.index import rows
from notary.index.meta import decode_agreement, decode_log_state, format_version, joiner_state_of, offsets_next_of
from notary.index.rocks import IndexSettings, RocksFamily, open_store
from notary.index.store import DECISIONS, META, REMEDY, STATES, TILES, Reading
from notary.index.tiles import StoredTree
from ordering.durable import temporary_folder
from ordering.errors import ConfigurationError, CorruptRecord, Fatal, FatalCode, NotaryError
from ordering.ids import STATE_REF_BYTES, TRANSACTION_ID_BYTES, StateRef, TransactionId

ATTEMPTS_MAX: Final = 1_000
SETTINGS: Final = IndexSettings(cache_bytes=8 << 20)
LINKS: Final = ".export-"
"""The prefix of the folder for the links. RocksDB ignores such a folder."""
CURRENT: Final = "CURRENT"
"""The file that names the MANIFEST in force: a folder with it holds an index."""
RIGHTS: Final = "This needs the rights of the worker's user"


class IndexView:
    """A snapshot of an index. `offsets_next`: by topic-partition, as in `Index.joiner_state`."""

    def __init__(self, store: Rdict, directory: Path) -> None:
        """Use `viewing`."""
        self._store = store
        self._directory = directory
        with Reading(directory):
            self._meta = self._family(META)
            # It is read first: in another version, other rows may have another meaning.
            self.format_version = format_version(self._required(rows.FORMAT_KEY), directory)
            self.notary_name = self._required(rows.NOTARY_KEY).decode()
            self.log_identity = self._required(rows.LOG_KEY).decode()
            log_state = self._meta.get(rows.LOG_STATE_KEY)
            self.payload_partitions = 0 if log_state is None else decode_log_state(log_state).payload_partitions
            progress = self._meta.get(rows.PROGRESS_KEY)
            self.position_next, self.log_time_ms = rows.PROGRESS.unpack(progress) if progress else (0, 0)
            self.offsets_next = offsets_next_of(self._meta)
            self.tree = StoredTree(self.position_next, self._family(TILES), directory).view()
        self.root = self.tree.root

    def decisions(self) -> Iterator[Decision]:
        """Yields all decisions, in the order of their transaction ids. Raises `Fatal` for a row that cannot be read or decoded."""
        with Reading(self._directory):
            for id_, row in self._rows(DECISIONS, TRANSACTION_ID_BYTES):
                yield from_row(id_, row)

    def states(self) -> Iterator[tuple[StateRef, TransactionId, int]]:
        """Yields all consumed states in their order: (state, transaction that consumed it, its position). Raises `Fatal`.

        Reserved states are left out: nobody knows which transaction consumed them (R11).
        """
        with Reading(self._directory):
            for state, row in self._rows(STATES, STATE_REF_BYTES):
                consumer, position = rows.state_of(row)
                if position != rows.RESERVED:
                    yield state, consumer, position

    def rows_of(self, family: str, from_key: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yields every row of a family from that key on, undecoded."""
        return self._family(family).items(from_key=from_key)

    def rows_at(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns the rows of these keys, undecoded; None for a key without a row."""
        found: list[bytes | None] = self._family(family).get_in_passing(keys)
        return found

    def tables(self) -> frozenset[str]:
        """Returns the names of the table files of this view."""
        return frozenset([file["name"].strip("/") for file in self._store.live_files()])

    def joiner_state(self) -> JoinerState:
        """Returns the state from which a joiner resumes, as `Index.joiner_state` does. Raises `Fatal` when the rows are inconsistent."""
        with Reading(self._directory):
            return joiner_state_of(self._meta, self.offsets_next, self.log_time_ms)

    def quarantined(self) -> str:
        """Returns the reason why the index is quarantined; empty if it is not."""
        with Reading(self._directory):
            return decode_agreement(self._meta.get(rows.AGREEMENT_KEY)).quarantined

    def unfit(self) -> str:
        """Returns the reason why the index may be wrong: quarantine, root disagreement (R9) or suspicion (R10); empty without one."""
        with Reading(self._directory):
            agreement = decode_agreement(self._meta.get(rows.AGREEMENT_KEY))
        suspected = ", ".join(sorted(self.joiner_state().suspicions))
        return (
            agreement.quarantined
            or ("its root differs from another worker's" if agreement.disagreement else "")
            or (f"{suspected} saw another history" if suspected else "")
        )

    def _required(self, key: bytes) -> bytes:
        value: bytes | None = self._meta.get(key)
        if value is None:
            raise CorruptRecord(f"its row {key.decode()!r} is missing")
        return value

    def _family(self, name: str) -> RocksFamily:
        return RocksFamily(self._store, name)

    def _rows(self, name: str, key_bytes: int) -> Iterator[tuple[bytes, bytes]]:
        for key, row in self._family(name).items():
            if len(key) != key_bytes:
                raise CorruptRecord(f"the key {key.hex()} of a row has {len(key)} bytes, not {key_bytes}")
            yield key, row


@contextlib.contextmanager
def viewing(directory: Path) -> Iterator[IndexView]:
    """Open a view of the index in that directory for the length of a block. A worker that has the index open is not disturbed.

    Raises `ConfigurationError` if there is no index, or one of another format; `Fatal` for a damaged index.
    """
    store = _open(directory)
    try:
        yield IndexView(store, directory)
    finally:
        store.close()


def check_is_index(directory: Path) -> None:
    """Raise `ConfigurationError` if there is no index in that directory."""
    if not (directory / CURRENT).is_file():
        raise ConfigurationError(f"there is no index in {directory}: a worker's index is in a folder of its name, under index.directory")


def _open(directory: Path) -> Rdict:
    check_is_index(directory)
    with contextlib.ExitStack() as held:
        try:
            links = held.enter_context(temporary_folder(directory, LINKS))
        except OSError as problem:
            raise ConfigurationError(f"no folder can be made in the index {directory}: {problem}. {RIGHTS}") from None
        try:
            link_files(directory, links)
            return open_store(links, SETTINGS, read_only=True)
        except NotaryError as problem:
            problem.args = (str(problem).replace(str(links), str(directory)),)
            raise


def link_files(directory: Path, links: Path) -> None:
    """Link the files of a consistent snapshot of the index into an empty folder of the same file system.

    Raises `ConfigurationError` without an index or the right to link; `Fatal` if the index is damaged, or changed at every attempt.
    """
    check_is_index(directory)
    for _ in range(ATTEMPTS_MAX):
        if _link(directory, links):
            return
        for file in links.iterdir():
            file.unlink()
    if _file_state(directory) is None:
        raise Fatal(
            FatalCode.INDEX_DAMAGED,
            f"the index {directory} is damaged: its file {CURRENT} names a MANIFEST that is missing. {REMEDY}",
        )
    raise Fatal(FatalCode.INDEX_BUSY, f"the files of the index {directory} changed while they were linked, {ATTEMPTS_MAX} times: try again")


def _link(directory: Path, links: Path) -> bool:
    """Link the files of one snapshot. Returns False when the store changed meanwhile."""
    before = _file_state(directory)
    if before is None:
        return False
    manifest, length, logs = before
    try:
        with (directory / manifest).open("rb") as file_list:
            content = file_list.read(length)
        for file in os.scandir(directory):
            if file.name.endswith(".sst") or file.name in logs:
                with contextlib.suppress(FileNotFoundError):  # RocksDB has removed it: `_file_state` shows whether the store changed
                    os.link(file.path, links / file.name)
    except FileNotFoundError:
        return False
    except OSError as problem:
        raise ConfigurationError(
            f"the files of the index {directory} cannot be linked: {problem}. {RIGHTS}, and a"
            " file system with hard links; or copy the index while its worker is stopped, and export the copy"
        ) from None
    (links / manifest).write_bytes(content)
    (links / CURRENT).write_text(manifest + "\n")
    return _file_state(directory) == before


def _file_state(directory: Path) -> tuple[str, int, frozenset[str]] | None:
    """Returns the MANIFEST's name and length, and the logs' names: a flush or compaction changes them. None while a file is replaced."""
    try:
        manifest = (directory / CURRENT).read_text().strip()
        length = (directory / manifest).stat().st_size
        return manifest, length, frozenset([file.name for file in os.scandir(directory) if file.name.endswith(".log")])
    except FileNotFoundError:
        return None
