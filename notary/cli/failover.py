"""`notary failover`: makes the mirror that `notary mirror` has filled in another cluster the notary's log (R11, docs/salvage.md).

A mirror is a prefix of the log, so a failover is a salvage, with the crash table of `notary.cli.salvage`. There are three differences:

- The mirror must not grow any more: records that arrive after the command has read it would be lost silently.
- The salvage is made even if nothing is missing. After its `key` record, every reader skips the records of old workers.
- At the end the topics are set to the brokers' append times (`use_append_times`). No worker starts before that. A crash just before leaves
  a completed salvage, and the next run continues.

`--prepare` creates the topics, before `notary mirror` starts.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from notary import keys
from notary.cli import owner, print_result, salvage
from notary.cli.mirror import add_target_arguments, refuse_one_log, source_and_target
from notary.config import Config, load
from notary.exit_codes import EXIT_DONE
from notary.salvage.choice import Choice
from notary.salvage.reach import facts_of_reach, lines_of_reach
from notary.salvage.report import lines_of
from ordering.errors import ConfigurationError
from ordering.log import describe
from ordering.records import SALVAGE_FORMAT
from ordering.topics import create_topics, use_append_times, uses_append_times

WORK: Final = "failover"
QUIET_S: Final = 3.0
"""The mirror must not grow for this time: `notary mirror` copies new records several times a second."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary failover`: those of `notary salvage`, and its own."""
    add_target_arguments(parser)
    prepare = "create the topics that `notary mirror` will fill, with the settings of a mirror; the log itself must be up"
    parser.add_argument("--prepare", action="store_true", help=prepare)
    parser.add_argument("--flush-messages", action="store_true", help="with --prepare: like `notary init --flush-messages`")
    salvage.add_arguments(parser, WORK)


def run(arguments: argparse.Namespace) -> int:
    """Fail over, or prepare for it. Returns 0 when it is done; 1 if the sources are refused or the operator answered no."""
    source, target = source_and_target(arguments)
    if arguments.prepare:
        refuse_one_log(source, target)
        return asyncio.run(_prepare(source, target, arguments))
    if arguments.lost and arguments.to_config:
        _refuse_other_key(target, load(arguments.to_config, environment={}))
    return asyncio.run(_Failover(target, arguments).run())


def _refuse_other_key(config: Config, other: Config) -> None:
    """Raise `ConfigurationError` if the notary's key is missing here, and the configuration of the mirror names one."""
    here, there = config.key_files, other.key_files
    if keys.is_missing(here.key) and not keys.is_missing(there.key):
        raise ConfigurationError(
            f"{there.key} is there: a key that is not lost endorses the new one. Copy it to {here.key}, and {there.history} to"
            f" {here.history}, and run the same command without --lost. If it is not the notary's present key, move it away"
        )


async def _prepare(source: Config, target: Config, arguments: argparse.Namespace) -> int:
    async with owner.opened(source, "failover") as log:
        await log.replay()
        partitions, formats = log.state.payload_partitions, log.state.formats
        if freed := [partition for partition, offsets in (await log.log.offsets()).items() if offsets.log_start]:
            raise ConfigurationError(
                f"contents at the start of {describe(min(freed))} were freed (`notary trim`), and a mirror that begins now would lack them:"
                " a failover to it would forget their decisions. Only a mirror that began before the first trim can be used"
            )
    made = await create_topics(
        target.log.bootstrap,
        target.log.topic_prefix,
        partitions,
        security=target.kafka_security,
        flush_ordering=arguments.flush_messages,
        mirror=True,
    )
    active = SALVAGE_FORMAT in formats
    lines = [f"created        topic {name}" for name in made.created]
    lines += [f"existed        topic {name}, with the settings of a mirror" for name in made.existed]
    lines += [f"warning        {warning}" for warning in made.warnings]
    if not active:
        lines.append(f"warning        format version {SALVAGE_FORMAT} is not active, and no failover is possible without it:")
        lines.append(f"               `notary activate {SALVAGE_FORMAT}`")
    lines.append("next           start `notary mirror` (docs/runbook.md, Failover to a mirror)")
    facts = {"created": made.created, "existed": made.existed, "warnings": made.warnings, "format_active": active}
    print_result(facts, lines, as_json=arguments.json)
    return EXIT_DONE


async def _coming(log: owner.OwnedLog) -> str:
    """Returns a sentence about a topic-partition that grew within `QUIET_S`; empty if none grew."""
    before = await log.log.offsets()
    await asyncio.sleep(QUIET_S)
    after = await log.log.offsets()
    counts = {partition: after[partition].log_end - offsets.log_end for partition, offsets in before.items() if partition in after}
    return next((f"{count} records came into {describe(partition)}" for partition, count in counts.items() if count), "")


class _Failover(salvage.SalvageCommand):
    """One run of the command; its configuration has the mirror's brokers."""

    name = "failover"
    work = WORK

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[owner.OwnedLog]:
        log = self._config.log
        self._is_log = await uses_append_times(log.bootstrap, log.topic_prefix, self._config.kafka_security)
        if self._is_log and not self._keys.own():
            raise self._no_mirror()
        async with owner.opened(self._config, self.name, mirror=True) as opened:
            if (came := await _coming(opened)) and (came := await _coming(opened)):  # records in flight may still arrive the first time
                raise ConfigurationError(
                    f"the mirror still grows: {came} within {QUIET_S:g} s. Stop the workers of the old side. Wait until `notary mirror`"
                    " has copied everything, unless its source is gone. Then stop it, and run the same command again"
                )
            yield opened

    def _no_mirror(self) -> ConfigurationError:
        log = self._config.log
        return ConfigurationError(
            f"the topics of {log.topic_prefix} at {log.bootstrap} are no mirror: they have the brokers' append times. If they are the"
            " source, name the mirror's brokers. If the failover was made already, workers that have its key can start there; if"
            f" {self._work} was not its folder, and it was interrupted, name that folder with --work"
        )

    def _if_freed(self) -> str:
        return (
            "A failover to this mirror would forget their decisions: fail over to another mirror, or restore an archive (docs/runbook.md,"
            " 'Failover to a mirror')"
        )

    def _if_inactive(self, log: owner.OwnedLog) -> str:
        return (
            f"`notary activate {SALVAGE_FORMAT}` belongs before a failover, while the source serves (docs/runbook.md, Failover to a mirror)"
        )

    def _if_key_is_lost(self) -> str:
        return f"move {self._keys.present.key} away, and give --lost here"

    async def _salvage(self, job: salvage.SalvageJob) -> int:
        """Refuse a log whose failover another command made; and a mirror that is no prefix of its source.

        In such a mirror records in its middle are missing, or its topics were not empty.
        """
        if self._is_log and self._own_key(job) is None:
            raise self._no_mirror()
        suspicions = job.log.joiner.suspicions
        if suspicions.open:
            names = ", ".join(sorted(map(repr, suspicions.open)))
            agreed = max([effect.offset for effect in job.log.joiner.history.snapshot() if effect.seen <= suspicions.agreed], default=None)
            known = "No record is" if agreed is None else f"Only the ordering records up to {agreed} are"
            raise ConfigurationError(
                f"the mirror is no prefix of the log: {names} saw another history than the history of its records. {known} known to"
                " be unchanged. Records in its middle are missing, or its topics had records before `notary mirror` started. Fail over to"
                " another mirror, or restore an archive (docs/runbook.md, 'Failover to a mirror')"
            )
        return await super()._salvage(job)

    def _facts(self, job: salvage.SalvageJob, choice: Choice) -> dict[str, Any]:
        return {**super()._facts(job, choice), "mirror": {"brokers": self._config.log.bootstrap, **facts_of_reach(self._reach(job))}}

    def _lines(self, job: salvage.SalvageJob, choice: Choice) -> Iterator[str]:
        yield f"the mirror     {self._config.log.bootstrap}, topics of {self._config.log.topic_prefix}"
        reach = self._reach(job)
        log_time = datetime.fromtimestamp(reach.log_time_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
        yield from lines_of_reach(reach, log_time)
        yield from lines_of(choice, job.indexes, job.receipts, job.counts, reach)
        yield from self._warnings(job)
        size = job.kept.tree.size
        if size:
            yield f"answers        for positions up to {size - 1:,} stand, with their receipts"
            if choice.items:
                yield "               for those that are put back too"
        else:
            yield f"answers        {'for those that are put back stand, with their receipts' if choice.items else 'none stands'}"
        yield f"               All others from position {size:,} on that the old side gave are forgotten here. Their transactions"
        yield "               may be sent again and may be decided otherwise, their states may be spent again. Only --index and"
        yield "               --receipts can name them: give every index of an old worker, and ask all parties for their receipts, first"
        yield "old side       Each answer that an old worker gives from now on contradicts this side. This command cannot stop it: stop all"
        yield "               old workers, or cut them off from clients, first. After it none of their records counts here"

    def _is_needed(self, job: salvage.SalvageJob, choice: Choice) -> bool:
        return True

    async def _place_key(self, job: salvage.SalvageJob, choice: Choice | None, offset: int | None) -> int:
        await use_append_times(self._config.log.bootstrap, self._config.log.topic_prefix, self._config.kafka_security)
        code = await super()._place_key(job, choice, offset)
        if not self._arguments.json:
            file = self._arguments.to_config
            log = f"the [log] of {file}" if file else f'[log] bootstrap = "{self._config.log.bootstrap}"'
            print(f"               with {log}. Never start `notary mirror` in this direction again")
        return code
