"""The command line: `python -m spark_join verify …` (docs/spark.md).

Exits with 0 when the log is as it should be, 1 when violations were found, 2 when nothing can be said; stderr says why.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from deploy.local.errors import CannotRun
from spark_join.archive import read_archive
from spark_join.errors import CouldNotVerify
from spark_join.join import rest_of
from spark_join.kept import REPORT, STATE, read_state, write_state
from spark_join.progress import Progress
from spark_join.report import VIOLATIONS, write_report
from spark_join.session import open_session
from spark_join.signatures import read_keys
from spark_join.stages import Stages
from spark_join.state import start
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
    return COULD_NOT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m spark_join", description="The log of a notary, decided all over again in Spark.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser("verify", help="decide everything again, and compare with what the log says of it")
    command.add_argument("--archive", type=Path, required=True, metavar="DIR", help="the archive of both topics")
    command.add_argument("--parties", type=Path, metavar="FILE", help="the parties' keys; without them no signature is checked")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"where {REPORT} and {VIOLATIONS}/ go; it has neither yet")
    command.add_argument("--keep-state", action="store_true", help=f"keep in --out what a later run goes on from, as {STATE}/")
    command.add_argument("--checkpoint-from", type=Path, metavar="DIR", help="the --out of an earlier run: verify what came after it")
    command.add_argument(
        "--work", type=Path, metavar="DIR", help="for what the stages make; all executors reach it (default: a temporary one)"
    )
    command.add_argument("--master", default="local[*]", help="Spark's master (default: local[*])")
    command.add_argument("--memory", default="2g", help="the driver's memory (default: 2g)")
    command.add_argument("--quiet", action="store_true", help="do not tell the stages")
    return parser


def _verify(chosen: argparse.Namespace) -> int:
    if any((chosen.out / name).exists() for name in (REPORT, VIOLATIONS, STATE)):
        raise CouldNotVerify(f"{chosen.out} has a report already: name another folder with --out")
    chosen.out.mkdir(parents=True, exist_ok=True)
    keys = None if chosen.parties is None else read_keys(chosen.parties)
    with tempfile.TemporaryDirectory(prefix="spark_join-", dir=chosen.work) as folder:
        session = open_session(Path(folder), master=chosen.master, memory=chosen.memory)
        progress = Progress(session, chosen.command, quiet=chosen.quiet)
        try:
            earlier = chosen.checkpoint_from
            state = start(session)
            if earlier is not None:
                progress("state")
                state = read_state(session, earlier)
            progress("archive")
            log = rest_of(read_archive(session, chosen.archive, state.since), state)
            verified = verify(session, log, state, keys, Stages(session, Path(folder) / "stages", progress))
            state_sha256 = None
            if chosen.keep_state and verified.violations.isEmpty():
                progress("state that is kept")
                state_sha256 = write_state(session, chosen.out, verified.after(), earlier)
            progress("report")
            said = write_report(
                chosen.out,
                log,
                verified,
                signatures=keys is not None,
                stages_s=progress.took_s,
                state=state,
                state_sha256=state_sha256,
            )
        finally:
            progress.end()
            session.stop()
    print(msgspec.json.encode({name: said[name] for name in ("decisions", "outcomes", "root", "checkpoints", "violations")}).decode())
    if verified.offset_hole is not None:
        print(f"spark_join verify: nothing is decided from ordering offset {verified.offset_hole} on: a hole", file=sys.stderr)
    return VIOLATED if said["violations"] else CLEAN


if __name__ == "__main__":
    sys.exit(main())
