"""Makes a snapshot of an index, while its worker goes on writing.

| step | a crash after it leaves |
|---|---|
| the index's files are linked into its folder `.snapshot` | links, which the next call of `make` or start of the worker removes |
| files that the store does not have are copied there | files that no manifest names: the next call uses them, or `prune` removes them |
| the manifest is written | a snapshot |
"""

import contextlib
import shutil
import sys
from collections.abc import Callable, Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Final

from notary.access import alone_in
from notary.index import IndexView, check_is_index, link_files, viewing
from notary.keyring import Keyring
from notary.receipts.note import VerifierKey
from notary.snapshots import manifest as manifests
from notary.snapshots.manifest import Manifest, SnapshotFile, SnapshotHistory
from notary.snapshots.store import FILES, MANIFESTS, SnapshotStore, chunks_of
from ordering.durable import locked_directory, naming
from ordering.errors import ConfigurationError, NotReady

STAGE: Final = ".snapshot"
TRANSFERS: Final = 4
"""The number of files that are copied at a time."""

Progress = Callable[[str, int, int | None], None]
"""Receives the name of a task, the bytes done, and all bytes to be done."""


def make(
    index: Path, worker: str, origin: str, notary: str, keyring: Keyring, store: SnapshotStore, now_ms: int, progress: Progress
) -> Manifest:
    """Make a snapshot of the index in that folder. Returns its manifest.

    Raises `ConfigurationError` where there is no index of this notary, or another call is making one; `NotReady` for an index that is
    quarantined, in a root disagreement or suspected, and for a store that cannot be used; `Fatal` for a damaged index.
    """
    stage = index / STAGE
    check_is_index(index)  # a worker restores no snapshot into a folder that has a stage
    stage.mkdir(exist_ok=True)
    with naming(stage), alone_in(stage, f"another process is making a snapshot of {index}: wait for it"):
        try:
            empty(stage)
            link_files(index, stage)
            for log in stage.glob("*.log"):
                _cut_off(log)
            with viewing(stage) as view:
                _check(view, index, notary)
                _keep_tables(stage, view.tables())
                files = _hashed(stage, progress)
                facts = _facts(view, worker, now_ms, files)
                state = view.joiner_state().log_state
            if state is None:
                raise NotReady(f"the index {index} has read nothing of its log yet")
            key = keyring.private_key(state.key)
            if key is None:
                raise ConfigurationError(f"the key in force, {state.key.hex()}, is not on this machine: no snapshot can be signed")
            _copy(stage, files, store, progress)
            note = manifests.sign(facts, origin, key)
            manifests.open_manifest(note, facts.name, [VerifierKey(origin, state.key)])  # never write a manifest that does not open
            written = stage / "manifest"
            written.write_text(note, encoding="utf-8")
            store.put(written, MANIFESTS, facts.name)
            _copy(stage, files, store, progress)  # `prune` may have removed one meanwhile
            return facts
        finally:
            empty(stage)


def remove_links(index: Path) -> None:
    """Remove the links that a killed `make` left, as far as this user may. A `make` that runs keeps its own, since it holds the lock."""
    with contextlib.suppress(OSError, ConfigurationError), locked_directory(index / STAGE):
        empty(index / STAGE)


def empty(stage: Path) -> None:
    """Remove all that is in a folder. Raises `ConfigurationError` for a link to one: its files are not this software's."""
    if stage.is_symlink():
        raise ConfigurationError(f"{stage} is a link, and this software makes a folder there: remove the link")
    for left in stage.iterdir():
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def _cut_off(log: Path) -> None:
    """Replace the link to a write-ahead log by a copy, since the original still grows. RocksDB drops a batch that the copy cuts off."""
    copy = log.with_suffix(".copy")
    shutil.copyfile(log, copy)
    copy.replace(log)


def _keep_tables(stage: Path, tables: Container[str]) -> None:
    """Remove the links to all other tables: a compaction may be writing one under its final name, so its content still changes."""
    for table in stage.glob("*.sst"):
        if table.name not in tables:
            table.unlink()


def _check(view: IndexView, index: Path, notary: str) -> None:
    if view.notary_name != notary:
        raise ConfigurationError(f"the index {index} is of notary {view.notary_name!r}, and the configuration says {notary!r}")
    if why := view.unfit():
        raise NotReady(f"no snapshot is made of the index {index}: {why} (docs/runbook.md, 'The roots of two workers differ')")


def _facts(view: IndexView, worker: str, now_ms: int, files: tuple[SnapshotFile, ...]) -> Manifest:
    return Manifest(
        notary=view.notary_name,
        log=view.log_identity,
        index_format_version=view.format_version,
        worker=worker,
        made_at_ms=now_ms,
        decisions=view.position_next,
        root=view.root.hex(),
        log_time_ms=view.log_time_ms,
        history=history_of(view),
        offsets_next={str(partition): offset for partition, offset in sorted(view.offsets_next.items())},
        files=files,
    )


def history_of(view: IndexView) -> SnapshotHistory:
    """Returns the history of an index in the form of a manifest."""
    effects = view.joiner_state().effects
    return SnapshotHistory(effects[-1].seen, effects[-1].history.hex()) if effects else SnapshotHistory(0, "")


def hashed(
    chunks: Iterable[bytes], progress: Callable[[int], None], write: Callable[[bytes], object] = len, *, bytes_max: int = sys.maxsize
) -> tuple[int, str]:
    """Returns the length and the SHA-256 of a content, and passes each piece of it to `write`.

    Reading stops at the piece that exceeds `bytes_max`, which is not written.
    """
    digest, length = sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        length += len(chunk)
        if length > bytes_max:
            break
        write(chunk)
        progress(len(chunk))
    return length, digest.hexdigest()


class Counter:
    """Adds up the bytes of a task for its progress line."""

    def __init__(self, progress: Progress, what: str, total: int) -> None:
        self._progress, self._what, self._total, self._done = progress, what, total, 0

    def __call__(self, more: int) -> None:
        """Count more bytes."""
        self._done += more
        self._progress(self._what, self._done, self._total)


def _hashed(stage: Path, progress: Progress) -> tuple[SnapshotFile, ...]:
    paths = sorted([path for path in stage.iterdir() if path.is_file() and manifests.is_file_of_an_index(path.name)])
    counter = Counter(progress, "bytes hashed", sum(path.stat().st_size for path in paths))
    found = []
    for path in paths:
        with path.open("rb") as opened:
            found.append(SnapshotFile(path.name, *hashed(chunks_of(opened), counter)))
    return tuple(found)


def _copy(stage: Path, files: tuple[SnapshotFile, ...], store: SnapshotStore, progress: Progress) -> None:
    there = store.sizes(FILES)
    missing = {file.sha256: file for file in files if there.get(file.sha256) != file.bytes}
    counter = Counter(progress, "bytes copied", sum(file.bytes for file in missing.values()))

    def put(file: SnapshotFile) -> None:
        store.put(stage / file.name, FILES, file.sha256)
        counter(file.bytes)

    with ThreadPoolExecutor(TRANSFERS) as transfers:
        list(transfers.map(put, missing.values()))
