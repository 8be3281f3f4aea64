"""`notary snapshot create`, `list`, `verify`, `restore` and `prune`: signed copies of an index (`notary.snapshots`).

Only `create` needs a private key. The others read the key history.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from notary import keys
from notary.cli import ProgressLine, print_result
from notary.config import Config, load
from notary.exit_codes import EXIT_DONE, EXIT_NO
from notary.keyring import Keyring
from notary.receipts.errors import printable
from notary.snapshots.make import make, remove_links
from notary.snapshots.manifest import Manifest
from notary.snapshots.store import FILES, PRUNE_MARGIN_S, SnapshotStore, store_of
from notary.snapshots.take import FoundSnapshot, damaged_files, find, prune, restore_newest
from ordering.clock import clock_ms
from ordering.errors import ConfigurationError, NotReady

SHOWN_MAX: Final = 20
"""The limit for names of unusable snapshots: anyone who may write to the store can add some, and a worker logs them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary snapshot`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary in (
        ("create", "copy a worker's index, which may be in use, and sign a manifest of it"),
        ("list", "show the snapshots, the one with most decisions first"),
        ("verify", "read every file of a snapshot, and compare it with the signed manifest"),
        ("restore", "make a missing index from the newest snapshot that verifies"),
        ("prune", "remove old snapshots, and files that no manifest names"),
    ):
        action = actions.add_parser(name, help=summary, description=summary)
        action.add_argument("--config", required=True, type=Path, metavar="F", help="notary.toml")
        action.add_argument("--url", metavar="U", help="the folder or fsspec URL that keeps the snapshots (default: snapshots.url)")
        action.add_argument("--json", action="store_true", help="print the result as JSON")
        if name in ("create", "restore"):
            action.add_argument("--name", metavar="W", help="the worker's name (default: worker.name, else the host's name)")
        if name == "create":
            action.add_argument("--if-older-s", type=float, metavar="S", help="only if the newest snapshot is older than S seconds")
        if name in ("verify", "restore"):
            action.add_argument("--snapshot", metavar="NAME", help="this one (default: the newest)")
        if name == "verify":
            action.add_argument("--all", action="store_true", help="all of them")
            action.add_argument("--remove-damaged", action="store_true", help="remove damaged files, so that a later snapshot copies them")
        if name in ("create", "restore"):
            of = "with --if-older-s only snapshots" if name == "create" else "only a snapshot"
            action.add_argument("--log", default="", metavar="ID", help=f"{of} of the log with this identity")
        if name in ("create", "prune"):
            also = " and prune" if name == "create" else ""
            action.add_argument("--keep", type=int, metavar="N", help=f"keep the newest N of each log{also}")
        if name == "prune":
            young = "keep files younger than S seconds (default: a day)"
            action.add_argument("--margin-s", type=int, default=PRUNE_MARGIN_S, metavar="S", help=young)


def run(arguments: argparse.Namespace) -> int:
    """Run the given action. Returns 1 if a snapshot does not verify, or none can be restored. Every failure raises."""
    config = load(arguments.config, {"worker.name": getattr(arguments, "name", None), "snapshots.url": arguments.url})
    for flag in ("keep", "margin_s", "if_older_s"):
        if not (getattr(arguments, flag, None) or 0) >= 0:  # NaN is not either
            raise ConfigurationError(f"--{flag.replace('_', '-')} is {getattr(arguments, flag)}: give 0 or more")
    if not config.snapshots.url:
        raise ConfigurationError("no store of snapshots is configured: set `[snapshots] url` (NOTARY_SNAPSHOTS_URL), or give --url")
    actions: dict[str, Callable[[_Job], int]]
    actions = {"create": _create, "list": _list, "verify": _verify, "restore": _restore, "prune": _prune}
    job = _Job(config, arguments)
    try:
        return actions[arguments.action](job)
    finally:
        job.progress.end()


class _Job:
    """One command: its store, its keys, and how it reports."""

    def __init__(self, config: Config, arguments: argparse.Namespace) -> None:
        self.config, self.arguments = config, arguments
        self.store: SnapshotStore = store_of(config.snapshots.url, Path(config.directory))
        self.progress = ProgressLine()
        self._known = keys.verifier_keys(config.key_files)

    def found(self, *, former_keys: bool = False) -> Iterator[FoundSnapshot]:
        """Yields the snapshots, the one with most decisions first.

        Those signed by a former key are left out by default: a thief of that key could make some.
        """
        return find(self.store, self._known.every if former_keys else self._known.last, self.config.name)

    def named(self) -> Iterator[FoundSnapshot]:
        """Yields the snapshot that `--snapshot` names, or all."""
        wanted = self.arguments.snapshot
        return (each for each in self.found() if wanted in (None, each.name))

    def print(self, facts: dict[str, Any], *lines: str) -> None:
        """Print the facts as JSON, or the lines."""
        self.progress.end()
        print_result(facts, lines, as_json=self.arguments.json)

    def complain(self, text: str) -> None:
        """Print a message for people."""
        self.progress.end()
        print(f"notary snapshot: {text}", file=sys.stderr)


def _facts(name: str, manifest: Manifest | None, problem: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"snapshot": name}
    if manifest is not None:
        facts |= {each: getattr(manifest, each) for each in ("worker", "made_at_ms", "decisions", "root", "log")}
        facts["bytes"] = manifest.total_bytes
    return facts | {"problem": problem or None}


def _line(manifest: Manifest) -> str:
    made = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(manifest.made_at_ms / 1000))
    return f"{manifest.name}  {manifest.decisions:,} decisions, {manifest.total_bytes:,} bytes, made {made} by {manifest.worker}"


def _create(job: _Job) -> int:
    config, arguments = job.config, job.arguments
    os.nice(19)  # the worker that serves beside it comes first
    now_ms = clock_ms()
    if arguments.if_older_s is not None:
        made = [each.manifest for each in job.found() if each.manifest is not None and arguments.log in ("", each.manifest.log)]
        # Compare in both directions: a snapshot made by a clock that is ahead must not prevent all others.
        fresh = [each for each in made if abs(now_ms - each.made_at_ms) <= arguments.if_older_s * 1000]
        if fresh:
            remove_links(config.index_directory)
            newest = max(fresh, key=lambda each: each.made_at_ms)
            job.print(_facts(newest.name, newest, "") | {"made": False}, f"{_line(newest)}: not older than {arguments.if_older_s:g} s")
            return EXIT_DONE
    keyring = Keyring(config.key_files, time.monotonic)
    name = config.worker.name
    manifest = make(config.index_directory, name, config.origin, config.name, keyring, job.store, now_ms, job.progress)
    job.print(_facts(manifest.name, manifest, "") | {"made": True}, _line(manifest))
    if arguments.keep:
        try:
            _removed(job, arguments.keep, PRUNE_MARGIN_S)
        except (OSError, NotReady) as problem:
            job.complain(f"the snapshot is made, and old ones could not be removed: {problem}")
    return EXIT_DONE


def _list(job: _Job) -> int:
    found = list(job.found())
    lines = [_line(each.manifest) if each.manifest else f"{printable(each.name)}  not used: {each.problem}" for each in found]
    job.print({"snapshots": [_facts(each.name, each.manifest, each.problem) for each in found]}, *lines)
    if not found:
        job.complain(_none_in(job))
    return EXIT_DONE


def _none_in(job: _Job, name: str | None = None) -> str:
    return f"there is no snapshot {f'{name} ' if name else ''}in {job.config.snapshots.url}"


def _verify(job: _Job) -> int:
    code, seen = EXIT_DONE, 0
    for each in job.named():
        seen += 1
        problem, removed = _damage(job, each)
        lines = f"{printable(each.name)}: {problem or 'verified'}", *[f"removed {name}" for name in removed]
        job.print(_facts(each.name, each.manifest, problem) | {"removed": removed}, *lines)
        code = EXIT_NO if problem else code
        if not job.arguments.all:
            break
    if not seen:
        job.complain(_none_in(job, job.arguments.snapshot))
        return EXIT_NO
    return code


def _damage(job: _Job, found: FoundSnapshot) -> tuple[str, list[str]]:
    """Returns the first problem of a snapshot, and with `--remove-damaged` the files removed from the store."""
    if found.manifest is None:
        return found.problem, []
    problem, removed, stays = "", list[str](), False
    for each in damaged_files(job.store, found.manifest, job.progress):
        problem = problem or str(each)
        if not job.arguments.remove_damaged:
            stays = each.blocks_its_copy
            break
        if each.blocks_its_copy:
            # A crash before this line leaves the damaged file, after it a missing one: both make the snapshot unsound.
            job.store.remove(FILES, each.file.sha256)
            removed.append(f"{FILES}/{each.file.sha256}")
    if stays:
        job.complain("snapshots made from now on use the damaged file too: run this command with --remove-damaged, then make one")
    return problem, removed


def _restore(job: _Job) -> int:
    index, unused = job.config.index_directory, 0

    def report(problem: str) -> None:
        nonlocal unused
        unused += 1
        if unused <= SHOWN_MAX:
            job.complain(problem)

    manifest = restore_newest(job.store, job.named(), index, job.arguments.log, job.progress, report)
    if unused > SHOWN_MAX:
        job.complain(f"{unused} snapshots could not be used, and these are the first {SHOWN_MAX}: `notary snapshot list` has all")
    if manifest is None:
        job.complain(f"there is no snapshot in {job.config.snapshots.url} that can be restored to {index}")
        return EXIT_NO
    job.print(_facts(manifest.name, manifest, "") | {"index": str(index)}, f"{_line(manifest)}: restored to {index}")
    return EXIT_DONE


def _prune(job: _Job) -> int:
    keep = job.config.snapshots.keep if job.arguments.keep is None else job.arguments.keep
    if keep < 1:
        raise ConfigurationError("the number of snapshots to keep is missing: set --keep, or `[snapshots] keep`, to 1 or more")
    removed = _removed(job, keep, job.arguments.margin_s)
    job.print(removed, f"removed {len(removed['snapshots'])} snapshots and {removed['files']} files")
    return EXIT_DONE


def _removed(job: _Job, keep: int, margin_s: int) -> dict[str, Any]:
    pruned = prune(job.store, lambda: job.found(former_keys=True), keep, margin_s)
    if pruned.not_ours:
        names = ", ".join([printable(name) for name in pruned.not_ours[:SHOWN_MAX]])
        names += f" and {len(pruned.not_ours) - SHOWN_MAX} others" if len(pruned.not_ours) > SHOWN_MAX else ""
        job.complain(f"no file is removed: no key of this notary has signed {names}, which may need the files")
    if not pruned.found:
        job.complain(f"no file is removed: there is no manifest in {job.config.snapshots.url}")
    return {"snapshots": pruned.manifests, "files": pruned.files, "not_ours": pruned.not_ours}
