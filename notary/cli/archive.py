"""`notary archive stream`, `fetch` and `prune`: the segments that a worker streams between two runs of `spark_join archive`."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from notary import keys
from notary.access import alone_in
from notary.archive.settings import ANSWER_CHARS_MAX, SealCommand, Sealed
from notary.cli import check_pyarrow, json_line
from notary.config import Config, load
from notary.exit_codes import EXIT_DONE
from notary.keyring import Keyring
from notary.open_log import identify, open_log
from notary.snapshots.store import PRUNE_MARGIN_S, SnapshotStore, store_of
from ordering.clock import clock_ms
from ordering.durable import make_directory
from ordering.errors import ConfigurationError, NotaryError, NotReady
from ordering.genesis import read_genesis

if TYPE_CHECKING:
    from notary.archive.archived import ArchivedLog
    from notary.archive.segment import FoundSegment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary archive`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary in (
        ("stream", "seal segments on commands of a worker on standard input; workers start it themselves"),
        ("fetch", "add the segments that begin at the end of an archive to it, as one more range"),
        ("prune", "remove the segments that an archive has"),
    ):
        action = actions.add_parser(name, help=summary, description=summary)
        action.add_argument("--config", required=True, type=Path, metavar="F", help="notary.toml")
        action.add_argument("--url", metavar="U", help="the folder or fsspec URL that keeps the segments (default: archive.url)")
        if name == "stream":
            action.add_argument("--name", metavar="W", help="the worker's name (default: worker.name, else the host's name)")
        else:
            action.add_argument("--archive", required=True, type=Path, metavar="DIR", help="the archive of both topics")
            action.add_argument("--json", action="store_true", help="print the result as JSON")
        if name == "prune":
            aged = "leave segments sealed in the last S seconds (default: a day)"
            action.add_argument("--margin-s", type=int, default=PRUNE_MARGIN_S, metavar="S", help=aged)


def run(arguments: argparse.Namespace) -> int:
    """Stream, fetch or prune. Every failure raises."""
    config = load(arguments.config, {"worker.name": getattr(arguments, "name", None), "archive.url": arguments.url})
    if getattr(arguments, "margin_s", 0) < 0:
        raise ConfigurationError(f"--margin-s is {arguments.margin_s}: give 0 or more")
    if not config.archive.url:
        raise ConfigurationError("no store of segments is configured: set `[archive] url` (NOTARY_ARCHIVE_URL), or give --url")
    if arguments.action == "stream":
        return asyncio.run(_stream(config))
    check_pyarrow("reads and writes segments")
    store = store_of(config.archive.url, Path(config.directory))
    return (_fetch if arguments.action == "fetch" else _prune)(config, store, arguments)


async def _stream(config: Config) -> int:
    """Seal segments until standard input ends or a command fails. The answer to that command has the problem.

    A command for which log or store are not ready is not the last one.
    """
    try:
        check_pyarrow("reads and writes segments")
        from notary.archive.stream import SegmentStream  # imported late: the line before checks that pyarrow is installed

        os.nice(19)  # the worker that serves beside it comes first
        store = store_of(config.archive.url, Path(config.directory))
        log = await open_log(config)
        try:
            notary, identity = await identify(config, log)
            keyring = Keyring(config.key_files, time.monotonic)
            names = notary, config.origin, config.worker.name
            stream = SegmentStream(log, identity, *names, keyring, lambda: _trusted(config), store, clock_ms)
            while line := await asyncio.to_thread(sys.stdin.readline):
                try:
                    sealed = await stream.seal(msgspec.json.decode(line, type=SealCommand))
                except NotReady as problem:
                    sealed = Sealed(problem=str(problem)[:ANSWER_CHARS_MAX], goes_on=True)
                print(msgspec.json.encode(sealed).decode(), flush=True)
            await stream.close()
        finally:
            await log.close()
    except (NotaryError, OSError, ValueError) as problem:
        print(msgspec.json.encode(Sealed(problem=str(problem)[:ANSWER_CHARS_MAX])).decode(), flush=True)
        raise
    return EXIT_DONE


def _trusted(config: Config) -> list[Any]:
    """Returns all keys of the key history, in order. `fetch` checks that segments of a former key end before its replacement."""
    return keys.verifier_keys(config.key_files).every


def _segments(config: Config, store: SnapshotStore, but: frozenset[str] = frozenset()) -> "list[FoundSegment]":
    """Returns the segments in the store, but those with these names. Raises `NotVerified` for a manifest that cannot be used."""
    from notary.archive.segment import find  # imported late: it needs pyarrow

    return list(find(store, _trusted(config), config.name, but))


@contextmanager
def _archived(archive: Path, segments: "list[FoundSegment]") -> "Iterator[ArchivedLog | None]":
    """Lock an archive for the length of a block. Yields None if the folder has no range. Raises `ConfigurationError` for another log."""
    from notary.archive.archived import ArchivedLog  # imported late: it needs pyarrow

    with alone_in(archive, f"another process changes the archive {archive}: wait for it"):
        if not any((archive / "ranges").glob("*.json")):
            yield None
            return
        log = ArchivedLog(archive)
        _, log_id = asyncio.run(read_genesis(log))
        if other := [segment for segment in segments if segment.log_id != log_id]:
            raise ConfigurationError(
                f"the segment {other[0].name} is of another log than the archive {archive}: name another store with --url"
            )
        yield log


def _fetch(config: Config, store: SnapshotStore, arguments: argparse.Namespace) -> int:
    from notary.archive.archived import ArchivedLog
    from notary.archive.fetch import fetch, tidy  # imported late: they need pyarrow

    segments = _segments(config, store)
    if not segments and not any((arguments.archive / "ranges").glob("*.json")):  # later, `prune` has removed all that the archive has
        raise ConfigurationError(f"there is no segment in {config.archive.url}: name the store that `[archive] url` of the workers names")
    if len({segment.log for segment in segments}) > 1:
        logs = ", ".join(sorted({each.log for each in segments}))
        raise ConfigurationError(f"{config.archive.url} has segments of several logs, {logs}: name another store with --url")
    make_directory(arguments.archive)
    with _archived(arguments.archive, segments) as archived:
        made = fetch(store, segments, arguments.archive, archived, _trusted(config)[-1].public_key)
        text = f"range {made.range}: {made.records} records of {made.segments} segments" if made.range else "the archive has all of them"
        print(json_line(msgspec.to_builtins(made, str_keys=True)) if arguments.json else text)
        tidy(arguments.archive, ArchivedLog(arguments.archive))
    return EXIT_DONE


def _prune(config: Config, store: SnapshotStore, arguments: argparse.Namespace) -> int:
    from notary.archive.fetch import prune  # imported late: it needs pyarrow

    segments = _segments(config, store)
    if arguments.archive.is_dir():
        with _archived(arguments.archive, segments) as archived:
            if archived is not None:
                keep_after_ms = clock_ms() - 1000 * arguments.margin_s
                removed = prune(store, segments, archived, keep_after_ms, arguments.margin_s, lambda known: _segments(config, store, known))
                print(json_line({"removed": removed}) if arguments.json else f"removed {len(removed)} segments")
                return EXIT_DONE
    raise ConfigurationError(f"{arguments.archive} is no archive: there is no ranges/00000001.json; name another folder with --archive")
