"""Lists, verifies, restores and prunes the snapshots of a store.

A restore copies the files into a folder beside the index's, `.<worker>.restoring`, and compares each file with its hash. It opens them as
an index, compares its content with the manifest, and then renames the folder. A crash before that leaves a folder that is no worker's
index. The next restore empties it, and the next start of the worker removes it. A folder that is not empty is never replaced. If the
index's folder is a link, it is followed.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from notary.access import alone_in
from notary.index import CURRENT, INDEX_FORMAT_VERSION, viewing
from notary.receipts.errors import NotVerified, printable
from notary.receipts.note import VerifierKey
from notary.snapshots.make import TRANSFERS, Counter, Progress, empty, hashed, history_of
from notary.snapshots.manifest import MANIFEST_BYTES_MAX, Manifest, SnapshotFile, open_manifest
from notary.snapshots.store import FILES, MANIFESTS, SnapshotStore
from ordering.durable import TOO_MANY_FILES, locked_directory, make_directory, move_into_place, naming, sync, sync_directory
from ordering.errors import ConfigurationError, Fatal, FatalCode

_OTHER_KEY: Final = (
    ". No snapshot from before a rotation is restored: make a new one (`notary snapshot create`), or let the worker replay the log."
    " If this machine missed the rotation, copy key and key history from a machine that has that key"
)


class FoundSnapshot(msgspec.Struct, frozen=True):
    """A manifest in a store: opened, or the reason why it is not used."""

    name: str
    manifest: Manifest | None
    problem: str = ""


def find(store: SnapshotStore, trusted: Sequence[VerifierKey], notary: str) -> Iterator[FoundSnapshot]:
    """Yields the manifests of a store, sorted by decisions and then by time made, the highest first.

    Raises `OSError` if the store cannot be listed, or if this process has too many open files.
    """
    for name, size in sorted(store.sizes(MANIFESTS).items(), reverse=True):
        try:
            if size > MANIFEST_BYTES_MAX:
                raise NotVerified("malformed-snapshot", f"the manifest {name} has {size} bytes, more than {MANIFEST_BYTES_MAX}")
            parts: list[bytes] = []
            hashed(store.chunks(MANIFESTS, name), lambda _: None, parts.append, bytes_max=size)
            note = b"".join(parts).decode(errors="replace")
            manifest = open_manifest(note, name, trusted)
            if manifest.notary != notary:
                raise NotVerified("malformed-snapshot", f"the manifest {name} is of notary {manifest.notary!r}, not {notary!r}")
            yield FoundSnapshot(name, manifest)
        except FileNotFoundError:
            continue  # pruned meanwhile
        except NotVerified as problem:
            yield FoundSnapshot(name, None, f"{problem}{_OTHER_KEY if problem.reason == 'unknown-key' else ''}")
        except OSError as problem:
            if problem.errno in TOO_MANY_FILES:
                raise
            yield FoundSnapshot(name, None, printable(f"the manifest {name} cannot be read: {problem.strerror or problem}"))


class DamagedFile(msgspec.Struct, frozen=True):
    """A file of a snapshot that is missing, unreadable or has another content: the length and the hash found, or 0 and empty."""

    file: SnapshotFile
    length: int
    sha256: str
    unreadable: str = ""
    """The reason why it cannot be read."""

    @property
    def blocks_its_copy(self) -> bool:
        """True if the next snapshot with that file does not copy it again: it compares only the length."""
        return bool(self.sha256) and self.length == self.file.bytes

    def __str__(self) -> str:
        found = f"has {self.length} bytes with the hash {self.sha256}" if self.sha256 else "is missing"
        if self.unreadable:
            found = f"cannot be read: {printable(self.unreadable)}"
        return f"its file {self.file.name}, {FILES}/{self.file.sha256}, {found}"


def damaged_files(store: SnapshotStore, manifest: Manifest, progress: Progress) -> Iterator[DamagedFile]:
    """Reads every file of a snapshot. Yields those that are missing, unreadable or have another content.

    Raises `OSError` if this process has too many open files: that is no fault of the snapshot.
    """
    counter = Counter(progress, "bytes read", manifest.total_bytes)
    for file in manifest.files:
        try:
            found = hashed(store.chunks(FILES, file.sha256), counter, bytes_max=file.bytes)
        except FileNotFoundError:
            found = (0, "")
        except OSError as problem:
            if problem.errno in TOO_MANY_FILES:
                raise
            yield DamagedFile(file, 0, "", problem.strerror or str(problem))
            continue
        if found != (file.bytes, file.sha256):
            yield DamagedFile(file, *found)


def is_empty(index: Path) -> bool:
    """Returns true if there is nothing in the folder of an index, or no such folder."""
    return not index.exists() or (index.is_dir() and not any(index.iterdir()))


def restore(store: SnapshotStore, manifest: Manifest, index: Path, progress: Progress) -> None:
    """Restore the index of a snapshot into the folder `index`, which must be empty or missing.

    Raises `ConfigurationError` if the folder is not empty, or cannot be replaced; `NotVerified` unless all files are there and fit the
    manifest; `NotReady` if the store cannot be used.
    """
    index = index.resolve()  # the last step renames a folder, and a link is none
    if not is_empty(index):
        raise ConfigurationError(f"{index} is not empty: nothing is overwritten. Move it away first")
    if manifest.index_format_version != INDEX_FORMAT_VERSION:
        raise NotVerified(
            "malformed-snapshot",
            f"{manifest.name} has index format version {manifest.index_format_version}, and this software reads {INDEX_FORMAT_VERSION}",
        )
    stage = stage_of(index)
    make_directory(stage)
    with naming(stage), alone_in(stage, f"another process is restoring {index}: wait for it"):
        try:
            empty(stage)
            _check_can_be_replaced(index, stage / "empty")
            _copy(store, manifest, stage, progress)
            _compare(stage, manifest)
            # A crash before this line leaves the folder beside the index, after it the complete index. It fails if the target has files.
            move_into_place(stage, index)
        except BaseException:
            shutil.rmtree(stage, ignore_errors=True)
            raise


def stage_of(index: Path) -> Path:
    """Returns the folder in which a restore of this index works."""
    return index.with_name(f".{index.name}.restoring")


def remove_stage(index: Path) -> None:
    """Remove what a killed restore left, as far as this user may. A restore that runs keeps its folder, since it holds the lock."""
    stage = stage_of(index.resolve())
    with contextlib.suppress(OSError), locked_directory(stage):
        shutil.rmtree(stage)


def _check_can_be_replaced(index: Path, by: Path) -> None:
    """Replace an empty folder by another empty one. Raises `ConfigurationError` if it cannot be replaced."""
    try:
        mode = index.stat().st_mode & 0o7777
        by.mkdir()
        by.replace(index)  # in one step: behind a link to nothing a worker could not make its index
        for each in (index, by.parent):  # the folder above `by` becomes the index
            each.chmod(mode)
    except FileNotFoundError:
        pass
    except OSError as problem:
        raise ConfigurationError(
            f"{index} cannot be replaced by a restored index: {problem.strerror}. If a disk is mounted there, mount it one folder higher"
        ) from None


def _copy(store: SnapshotStore, manifest: Manifest, stage: Path, progress: Progress) -> None:
    counter = Counter(progress, "bytes restored", manifest.total_bytes)

    def get(file: SnapshotFile) -> None:
        try:
            with (stage / file.name).open("xb") as out:
                found = hashed(_chunks(store, manifest, file), counter, out.write, bytes_max=file.bytes)
                sync(out)
        except FileNotFoundError:
            found = (0, "")
        if found != (file.bytes, file.sha256):
            raise NotVerified("malformed-snapshot", f"{manifest.name}: {DamagedFile(file, *found)}")

    *others, last = sorted(manifest.files, key=lambda file: (file.name == CURRENT, file.name))
    with ThreadPoolExecutor(TRANSFERS) as transfers:
        list(transfers.map(get, others))
    get(last)  # without CURRENT no folder is an index
    sync_directory(stage)


def _chunks(store: SnapshotStore, manifest: Manifest, file: SnapshotFile) -> Iterator[bytes]:
    """Yields the content of a file. Raises `NotVerified` if the store has it and cannot read it: an older snapshot may do without it.

    An error of this machine's own disk, or a lack of open files, is no error of the store, and is not raised as one.
    """
    try:
        yield from store.chunks(FILES, file.sha256)
    except FileNotFoundError:
        raise
    except OSError as problem:
        if problem.errno in TOO_MANY_FILES:
            raise
        unreadable = DamagedFile(file, 0, "", problem.strerror or str(problem))
        raise NotVerified("malformed-snapshot", f"{manifest.name}: {unreadable}") from None


def _compare(stage: Path, manifest: Manifest) -> None:
    with viewing(stage) as view:
        held = (view.notary_name, view.log_identity, view.format_version, view.position_next, view.root.hex(), view.log_time_ms)
        history, offsets = history_of(view), {str(partition): offset for partition, offset in view.offsets_next.items()}
    named = (
        *(manifest.notary, manifest.log, manifest.index_format_version, manifest.decisions, manifest.root, manifest.log_time_ms),
        *(manifest.history, manifest.offsets_next),
    )
    if wrong := [(says, has) for says, has in zip(named, (*held, history, offsets), strict=True) if says != has]:
        says, has = wrong[0]
        raise NotVerified("malformed-snapshot", f"the manifest {manifest.name} says {says}, and the index in its files has {has}")


def restore_newest(
    store: SnapshotStore, found: Iterator[FoundSnapshot], index: Path, log: str, progress: Progress, report: Callable[[str], None]
) -> Manifest | None:
    """Restore the newest snapshot that verifies and, unless `log` is empty, is of that log. Returns its manifest; None if there is none.

    `report` receives the reason for each snapshot that is not used. Raises the errors of `restore`, except `NotVerified`; and `OSError` or
    `Fatal` if this machine lacks space or open files, since no other snapshot helps then.
    """
    for each in found:
        problem, manifest = each.problem, each.manifest
        if manifest is not None and log and manifest.log != log:
            problem = f"{each.name} is of another log, {manifest.log!r}, wanted {log!r}"
        elif manifest is not None:
            try:
                restore(store, manifest, index, progress)
            except (NotVerified, Fatal) as bad:
                if isinstance(bad, Fatal) and bad.code == FatalCode.OPEN_FILES:
                    raise
                problem = str(bad)
            else:
                return manifest
        name = printable(each.name)
        report(problem if name in problem else f"{name}: {problem}")
    return None


class Pruned(msgspec.Struct, frozen=True):
    """The result of a `prune`: the names removed, the number of files removed, and the manifests that no key of this notary signed."""

    manifests: tuple[str, ...]
    files: int
    not_ours: tuple[str, ...]
    found: bool
    """False if the store has no manifest at all: then no file is removed."""


def prune(store: SnapshotStore, look: Callable[[], Iterable[FoundSnapshot]], keep: int, margin_s: float) -> Pruned:
    """Remove all manifests but the newest `keep` of each log, and the files that no manifest names. `look` lists the manifests.

    Newest by decisions, and also newest by time made: a log that was truncated or restored has fewer decisions than its older snapshots.

    Files that a removed manifest names stay until the next call: a snapshot in the making may rely on them. Files younger than `margin_s`
    stay, since they may belong to a snapshot in the making. Manifests that do not open stay. While there is one, no file is removed, since
    that manifest may name it; nor is one if there is no manifest, since then the folder of the manifests may be out of reach.
    """
    before = list(look())
    old = _old(before, keep)
    for name in old:
        store.remove(MANIFESTS, name)
    named = _named(before)
    unnamed = [name for name in store.sizes(FILES) if name not in named and store.age_s(FILES, name) > margin_s] if named else []
    # Look again: a snapshot that was made meanwhile may name one of these files, which it found in the store.
    after = list(look()) if unnamed else before
    named = _named(after)
    not_ours = tuple([each.name for each in after if each.manifest is None])
    removed = [] if not_ours or not named else [name for name in unnamed if name not in named]
    for name in removed:
        store.remove(FILES, name)
    return Pruned(old, len(removed), not_ours, bool(after))


def _named(found: Iterable[FoundSnapshot]) -> set[str]:
    return {file.sha256 for each in found if each.manifest is not None for file in each.manifest.files}


def _old(found: Iterable[FoundSnapshot], keep: int) -> tuple[str, ...]:
    """Returns the names of the manifests that are among the newest `keep` of their log neither by decisions nor by time made."""
    by_log: dict[str, list[Manifest]] = {}
    for each in found:
        if each.manifest is not None:
            by_log.setdefault(each.manifest.log, []).append(each.manifest)
    old: list[str] = []
    for manifests in by_log.values():
        by_decisions = sorted(manifests, key=lambda each: each.name, reverse=True)
        by_time = sorted(manifests, key=lambda each: (each.made_at_ms, each.name), reverse=True)
        kept = {each.name for each in (*by_decisions[:keep], *by_time[:keep])}
        old += [each.name for each in by_decisions if each.name not in kept]
    return tuple(old)
