"""`notary trim`: frees the payloads that neither of two snapshots needs, if a verified archive covers both (R11, docs/salvage.md, Trim).

Its steps, and the result of a crash after each:

| step | a crash after it leaves |
|---|---|
| check the report of Spark and every file of the archive | nothing |
| restore the newest snapshot of each store; compare both with the log and with the archive | a folder, which the next run empties |
| read the log from the second snapshot on; append the mark, a `trim` record with position and root | the mark; the next run frees |
| DeleteRecords on the payload topic, as the principal of `--log-settings` | some partitions are freed; the next run frees the others |

Each snapshot has, per payload partition, the first offset that its reader reads, or compares after an interruption (R10). Records before
the smaller of the two offsets are freed. The ordering topic is not touched.
"""

import argparse
import asyncio
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from joiner import JoinerState
from joiner.recheck import examine
from notary import keys
from notary.access import alone_in
from notary.cli import ProgressLine, check_pyarrow, owner, print_result
from notary.cli.init import log_settings_of
from notary.config import Config, kafka_security, load
from notary.exit_codes import EXIT_DONE, EXIT_NO
from notary.index import viewing
from notary.salvage.kept import KeptIndex, keeping
from notary.snapshots.manifest import Manifest
from notary.snapshots.store import FILE_SCHEMES, store_of
from notary.snapshots.take import FoundSnapshot, find, restore_newest, stage_of
from ordering.connection import KafkaSecurity
from ordering.durable import make_directory, remove_empty
from ordering.errors import ConfigurationError, NotReady, OutcomeUnknown
from ordering.kafka import KafkaLog
from ordering.log import ORDERING, Log, describe
from ordering.records import SALVAGE_FORMAT, Trim
from ordering.topics import free_records

if TYPE_CHECKING:
    from notary.archive.archived import ArchivedLog

PLACES: Final = 2
WORK: Final = "trim"
INDEX: Final = ".trim-index"
"""The restored index, in the folder of `--work`. No worker's index has such a name, whatever that folder is."""
_SAME_SCHEMES: Final = {"s3a": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs", "ssh": "sftp"}
REPORT: Final = "report.json"
NAMES_SHOWN: Final = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary trim`."""
    before = "use only snapshots of at most POSITION decisions (default: the newest)"
    parser.add_argument("--before", type=int, metavar="POSITION", help=before)
    parser.add_argument("--archive", required=True, type=Path, metavar="DIR", help="the archive of both topics")
    parser.add_argument("--verified", required=True, type=Path, metavar="DIR", help=f"the folder with Spark's {REPORT} about that archive")
    stores = "a store of snapshots besides `[snapshots] url`; may be given again. Two stores are needed"
    parser.add_argument("--snapshots", action="append", default=[], metavar="URL", help=stores)
    principal = "`[log]` settings of the principal that may delete records (default: the configuration's)"
    parser.add_argument("--log-settings", type=Path, metavar="FILE", help=principal)
    owner.add_plan_arguments(parser, WORK)


def run(arguments: argparse.Namespace) -> int:
    """Trim. Returns 0 when the payloads are freed; 1 if a precondition is missing, or the operator answered no."""
    return asyncio.run(_Trimming(load(arguments.config), arguments).run())


class VerifiedRanges(msgspec.Struct, frozen=True):
    """The ranges of an archive that Spark has verified."""

    ranges: int
    sha256: str


class VerifiedReport(msgspec.Struct, frozen=True):
    """The members of Spark's report that a trim needs."""

    notary: str
    decisions: int
    root: str
    violations: dict[str, int]
    archive: VerifiedRanges | None = None
    unlisted: str | None = None
    """A sentence about files of the archive that no range lists."""

    def about(self, archive: "ArchivedLog") -> str:
        """Returns why the report is not about that archive; empty if it is."""
        if self.archive is None:
            return "names no archive: it, or a run that it continues, read brokers or another archive, or is of older software"
        if archive.digest(self.archive.ranges) != self.archive.sha256:
            return f"is about another archive: the first {self.archive.ranges} ranges of this one do not have SHA-256 {self.archive.sha256}"
        return ""


class Snapshot(msgspec.Struct, frozen=True):
    """A restored snapshot: its store, its manifest, and the state from which its reader resumes."""

    store: str
    manifest: Manifest
    state: JoinerState


def to_free(snapshots: Sequence[JoinerState], firsts: Mapping[int, int]) -> dict[int, int]:
    """Returns, by payload partition, the offset before which all records are freed. `firsts`: the present log start offsets. Pure."""
    lowest = {partition: min(each.needed_from(partition) for each in snapshots) for partition in firsts if partition != ORDERING}
    return {partition: offset for partition, offset in lowest.items() if offset > firsts[partition]}


class _Trimming:
    """One run of the command. `_missing` collects the missing preconditions."""

    def __init__(self, config: Config, arguments: argparse.Namespace) -> None:
        self._config, self._arguments = config, arguments
        self._work: Path = arguments.work or config.path(WORK)
        self._index = self._work / INDEX
        self._progress = ProgressLine()
        self._missing: list[str] = []
        self._brokers, self._security = self._deleting()

    async def run(self) -> int:
        new = make_directory(self._work)
        with alone_in(self._work, f"another process trims with the folder {self._work}: wait for it"):
            try:
                async with owner.opened(self._config, "trim") as log:
                    if not isinstance(log.log, KafkaLog):
                        raise ConfigurationError(f"{log.log.identity} keeps its payloads: only a log on Kafka can be trimmed")
                    return await self._trim(log)
            finally:
                self._progress.end()
                self._remove_restored()
                remove_empty(new)

    def _remove_restored(self) -> None:
        """Remove the files of this command from the folder. It may have others: `--work` names any folder."""
        for made in (self._index, stage_of(self._index)):
            shutil.rmtree(made, ignore_errors=True)

    def _deleting(self) -> tuple[str, KafkaSecurity | None]:
        """Returns the brokers and the security of the principal that deletes. Raises `ConfigurationError`."""
        file: Path | None = self._arguments.log_settings
        if file is None:
            return self._config.log.bootstrap, self._config.kafka_security
        settings = log_settings_of(file, {"kind": "kafka"})
        return settings.bootstrap or self._config.log.bootstrap, kafka_security(settings, file.parent)

    async def _trim(self, log: owner.OwnedLog) -> int:
        identity = f"{log.log.identity} {log.log_id.hex()}"
        report, archive = self._report(log.genesis.notary_name), self._archive()
        if report is not None and archive is not None and (why := report.about(archive)):
            file = self._arguments.verified / REPORT
            self._missing.append(f"a report about this archive: {file} {why}. Verify the archive from the log's start")
        snapshots = [each for each in [await self._restored(store, identity, log.log, archive) for store in self._stores()] if each]
        if len(snapshots) < PLACES:
            return self._refused()
        with keeping(self._index, log.genesis.notary_name, identity) as kept:
            await log.replay(kept.state(), kept.apply, kept.stored_tree)
            if report is not None:
                self._compare(report, kept, snapshots)
            if SALVAGE_FORMAT not in log.state.formats:
                self._missing.append(f"format version {SALVAGE_FORMAT}, in which the mark counts: notary activate {SALVAGE_FORMAT}")
            if self._missing:
                return self._refused()
            return await self._free(log, kept, snapshots)

    def _report(self, notary: str) -> VerifiedReport | None:
        """Reads Spark's report. Returns None, and adds to `_missing`, if the report cannot be used."""
        file = self._arguments.verified / REPORT
        try:
            report = msgspec.json.decode(file.read_bytes(), type=VerifiedReport)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            self._missing.append(f"Spark's report: {file} cannot be read ({problem}). Verify the archive: notary verify-log --archive …")
            return None
        if report.notary != notary:
            self._missing.append(f"Spark's report: {file} is of notary {report.notary!r}, not {notary!r}")
        if report.unlisted:
            self._missing.append(f"a complete archive: {file} reports that {report.unlisted}. Archive and verify the log again")
        if report.violations:
            self._missing.append(f"a clean archive: {file} shows violations: {', '.join(sorted(report.violations))}")
        return report

    def _archive(self) -> "ArchivedLog | None":
        check_pyarrow("reads an archive")
        from notary.archive.archived import ArchivedLog  # imported late: this function first checks that pyarrow is installed

        try:
            archive = ArchivedLog(self._arguments.archive)
        except ConfigurationError as problem:
            self._missing.append(f"an archive: {problem}")
            return None
        damaged = list(archive.damaged(lambda done, of: self._progress("archived files read", done, of)))
        self._missing += [f"a sound archive: {each}" for each in damaged[:NAMES_SHOWN]]
        if len(damaged) > NAMES_SHOWN:
            self._missing.append(f"a sound archive: {len(damaged) - NAMES_SHOWN} more of its files are damaged")
        return None if damaged else archive

    def _stores(self) -> list[str]:
        """Returns the two stores of snapshots to use. If fewer are named, returns those, and adds to `_missing`."""
        given = [*([self._config.snapshots.url] if self._config.snapshots.url else []), *self._arguments.snapshots]
        different = list({_where(url, Path(self._config.directory)): url for url in given}.values())
        if len(different) < PLACES:
            named = ", ".join(different) or "none"
            self._missing.append(f"snapshots on two different stores: {named} is named. Name another with --snapshots URL")
        return different[:PLACES]

    async def _restored(self, store: str, identity: str, log: Log, archive: "ArchivedLog | None") -> Snapshot | None:
        """Restore the newest snapshot of a store, and compare it with log and archive. Returns None if one is missing or differs."""
        config, problems = self._config, list[str]()
        trusted = keys.verifier_keys(config.key_files).last
        index = self._index
        self._remove_restored()  # the previous snapshot's state is in memory, so only one restored index takes space
        opened = store_of(store, Path(config.directory))
        found = self._old_enough(find(opened, trusted, config.name), problems)
        try:
            made = restore_newest(opened, found, index, identity, self._progress, problems.append)
        except NotReady as problem:
            made, problems = None, [str(problem)]
        if made is None:
            why = "; ".join(problems[:NAMES_SHOWN]) or "there is none"
            self._missing.append(f"a snapshot of this log in {store} that verifies: {why}")
            return None
        with viewing(index) as view:
            snapshot, unfit = Snapshot(store, made, view.joiner_state()), view.unfit()
        if unfit:
            self._missing.append(f"a sound index: {made.name} in {store}: {unfit}")
            return None
        for what, held in (("the log", log), ("the archive", archive)):
            if held is not None and (why := await _lacks(held, snapshot)):
                self._missing.append(f"records of the snapshot {made.name} in {store}, which {what} does not have: {why}")
                return None
        return snapshot

    def _old_enough(self, found: Iterator[FoundSnapshot], problems: list[str]) -> Iterator[FoundSnapshot]:
        """Yields the snapshots of at most `--before` decisions."""
        before = self._arguments.before
        for each in found:
            if before is not None and each.manifest is not None and each.manifest.decisions > before:
                problems.append(f"{each.name} has more than {before} decisions")
            else:
                yield each

    def _compare(self, report: VerifiedReport, kept: KeptIndex, snapshots: Sequence[Snapshot]) -> None:
        """Compare Spark's report with the log: it must have the same tree, and reach as far as both snapshots."""
        for each in snapshots:
            if report.decisions < each.manifest.decisions:
                self._missing.append(
                    f"an archive that Spark has verified up to the snapshot {each.manifest.name} in {each.store}, which has"
                    f" {each.manifest.decisions} decisions: the report has {report.decisions}. Archive and verify the log, then run this"
                    " command again"
                )
        size = kept.tree.size
        if report.decisions > size or kept.stored_tree.root_at(report.decisions).hex() != report.root:
            self._missing.append(
                f"a report about this log: the report has root {report.root} of {report.decisions} decisions, and the log has another root,"
                f" or only {size} decisions"
            )

    async def _free(self, log: owner.OwnedLog, kept: KeptIndex, snapshots: Sequence[Snapshot]) -> int:
        position = min(each.manifest.decisions for each in snapshots)
        firsts = {partition: offsets.log_start for partition, offsets in (await log.log.offsets()).items()}
        wanted = to_free([each.state for each in snapshots], firsts)
        facts: dict[str, Any] = {
            "done": False,
            "position": position,
            "trimmed_before": log.state.trimmed,
            "snapshots": [{"store": each.store, "snapshot": each.manifest.name} for each in snapshots],
            "offsets_first": {str(partition): offset for partition, offset in sorted(wanted.items())},
            "records": sum(offset - firsts[partition] for partition, offset in wanted.items()),
        }
        self._show(facts)
        if not wanted:
            return self._end(facts, "nothing to free: the payload topic begins where these snapshots begin to read")
        if self._arguments.plan:
            return self._end(facts, "this was the plan: nothing was changed")
        if not owner.agreed(self._arguments, "trim", "nothing was changed", "the position", position):
            return self._end(facts, "nothing was changed", code=EXIT_NO)
        if position > log.state.trimmed:
            await self._mark(log, kept, position)
        assert isinstance(log.log, KafkaLog)
        try:
            freed = await free_records(self._brokers, self._config.log.topic_prefix, log.log.payload_topic_id, wanted, self._security)
        except (ConfigurationError, NotReady) as problem:
            raise type(problem)(
                f"the mark at position {position} is in the log, and not all payloads are freed: {problem}. Run the same command again"
            ) from None
        behind = [partition for partition, offset in wanted.items() if freed.get(partition, 0) < offset]
        if behind:
            raise OutcomeUnknown(f"{describe(min(behind))} still begins before offset {wanted[min(behind)]}: run the same command again")
        return self._end(facts | {"done": True}, f"freed          payloads of decisions below {position}")

    async def _mark(self, log: owner.OwnedLog, kept: KeptIndex, position: int) -> None:
        """Append the mark. Raises `ConfigurationError` without the owner's key, `OutcomeUnknown` if the mark took no effect."""
        signer = owner.load_owner_key(self._config, self._arguments.owner_key, log.genesis)
        outcome = await log.append(Trim(log.state.key, log.joiner.history.view, position, kept.stored_tree.root_at(position)), signer)
        if not outcome.took_effect:
            raise OutcomeUnknown(f"the mark took no effect: {outcome.why_not}. Nothing was freed; run the same command again")

    def _show(self, facts: Mapping[str, Any]) -> None:
        if self._arguments.json:
            return
        self._progress.end()
        print(f"position       {facts['position']}: payloads of decisions below it, {facts['records']} records")
        for each in facts["snapshots"]:
            print(f"snapshot       {each['snapshot']} in {each['store']}")
        for partition, offset in facts["offsets_first"].items():
            print(f"partition {partition:<4} from now on begins at offset {offset}")

    def _refused(self) -> int:
        return self._end({"done": False, "missing": self._missing}, *[f"missing        {each}" for each in self._missing], code=EXIT_NO)

    def _end(self, facts: dict[str, Any], *lines: str, code: int = EXIT_DONE) -> int:
        self._progress.end()
        print_result(facts, lines, as_json=self._arguments.json)
        return code


async def _lacks(log: Log, snapshot: Snapshot) -> str:
    """Returns a sentence about records of an index that a log or an archive lacks; empty if it has all of them. Raises `NotReady`."""
    ends = {partition: offsets.log_end for partition, offsets in (await log.offsets()).items()}
    state = snapshot.state
    for partition, offset in sorted(state.offsets_next.items()):
        if partition not in ends and partition < log.payload_partitions:
            raise NotReady(f"{describe(partition)} has no leader now, so a snapshot cannot be compared: check that all brokers are up")
        if ends.get(partition, 0) < offset:
            return f"{describe(partition)} ends at offset {ends.get(partition, 0)}, and the snapshot has read it up to {offset}"
    return await examine(log, state.effects, state.marks)


def _where(url: str, relative_to: Path) -> str:
    """Returns a canonical text of a store, the same for all its names."""
    scheme, found, rest = url.partition("://")
    if found and scheme not in FILE_SCHEMES:
        return f"{_SAME_SCHEMES.get(scheme, scheme)}://{'/'.join([part for part in rest.split('/') if part])}"
    return str((Path(rest).expanduser() if found else relative_to / url).resolve())  # as `store_of` does it: from the working directory
