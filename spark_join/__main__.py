"""The command line: `python -m spark_join verify …` (docs/spark.md).

Exits with 0 when the log is as it should be, 1 when violations were found, 2 when nothing can be said; stderr says why.
"""

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec

from deploy.local.errors import CannotRun
from spark_join.archive import read_archive
from spark_join.errors import CouldNotVerify
from spark_join.exports import read_exports
from spark_join.report import REPORT, VIOLATIONS, write_report
from spark_join.session import open_session
from spark_join.signatures import read_keys
from spark_join.stages import Stages
from spark_join.verify import verify

CLEAN, VIOLATED, COULD_NOT = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        return _verify(chosen)
    except (CouldNotVerify, CannotRun, OSError) as problem:
        print(f"spark_join verify: {problem}", file=sys.stderr)
    except KeyboardInterrupt:
        print("spark_join verify: interrupted", file=sys.stderr)
    except Exception:
        traceback.print_exc()  # Spark's, or a bug of ours; Python's own exit code for it would be 1
    return COULD_NOT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m spark_join", description="The log of a notary, decided all over again in Spark.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser("verify", help="decide everything again, and compare with what the log says of it")
    command.add_argument("--archive", type=Path, required=True, metavar="DIR", help="the archive of both topics")
    command.add_argument("--parties", type=Path, metavar="FILE", help="the parties' keys; without them no signature is checked")
    command.add_argument(
        "--index",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="an exported index (notary export), to be compared too; any number",
    )
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"where {REPORT} and {VIOLATIONS}/ go; it has neither yet")
    command.add_argument(
        "--work", type=Path, metavar="DIR", help="for what the stages make; all executors reach it (default: a temporary one)"
    )
    command.add_argument("--master", default="local[*]", help="Spark's master (default: local[*])")
    command.add_argument("--memory", default="2g", help="the driver's memory (default: 2g)")
    command.add_argument("--quiet", action="store_true", help="do not tell the stages")
    return parser


def _verify(chosen: argparse.Namespace) -> int:
    if (chosen.out / REPORT).exists() or (chosen.out / VIOLATIONS).exists():
        raise CouldNotVerify(f"{chosen.out} has a report already: name another folder with --out")
    chosen.out.mkdir(parents=True, exist_ok=True)
    keys = None if chosen.parties is None else read_keys(chosen.parties)
    progress = not chosen.quiet and sys.stderr.isatty()
    with tempfile.TemporaryDirectory(prefix="spark_join-", dir=chosen.work) as folder:
        session = open_session(Path(folder), master=chosen.master, memory=chosen.memory, progress=progress)
        try:
            watch = _Watch(quiet=chosen.quiet)
            watch("archive")
            log = read_archive(session, chosen.archive)
            exports = read_exports(session, chosen.index) if chosen.index else None
            verified = verify(session, log, keys, Stages(session, Path(folder) / "stages", watch), exports)
            watch("report")
            said = write_report(chosen.out, log, verified, signatures=keys is not None, stages_s=watch.took_s)
        finally:
            session.stop()
    print(
        msgspec.json.encode(
            {name: said[name] for name in ("decisions", "outcomes", "root", "checkpoints", "exports", "violations")}
        ).decode()
    )
    if verified.offset_hole is not None:
        print(f"spark_join verify: nothing is decided from ordering offset {verified.offset_hole} on: a hole", file=sys.stderr)
    return VIOLATED if said["violations"] else CLEAN


class _Watch:
    """Tells each stage when it begins, and knows how long the ones before took."""

    def __init__(self, *, quiet: bool) -> None:
        self.took_s: dict[str, float] = {}
        self._quiet = quiet
        self._started = time.monotonic()
        self._stage = ""

    def __call__(self, stage: str) -> None:
        now = time.monotonic()
        if self._stage:
            self.took_s[self._stage] = round(now - self._started, 3)
        self._stage, self._started = stage, now
        if not self._quiet:
            print(f"spark_join verify: {stage}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
