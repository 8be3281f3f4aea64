"""`notary activate`, `partitions`, `retire` and `settle`: each appends one record that the owner signs (R9, R10).

`partitions` first creates the partitions, in Kafka or in the embedded log's store. Only after its record may entries name a new one. A
crash between the two leaves unused partitions, and the same command again continues.
"""

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

from joiner.history import History
from joiner.read_ahead import read_ahead
from notary.cli import owner
from notary.cli.init import LEADERS_S_MAX, when_ready
from notary.config import Config, load
from ordering.embedded import EmbeddedLog
from ordering.errors import ConfigurationError, NotReady
from ordering.log import Log
from ordering.records import FORMAT_VERSION, Activate, Partitions, Retire, Settle
from ordering.topics import PARTITIONS_MAX, add_partitions

NAMES_SHOWN = 20
Result: TypeAlias = tuple[owner.CommandOutcome, str, dict[str, Any]]
"""The outcome, and the effect of the record: for people, and for programs."""


class OwnerCommand:
    """A command with one argument of its own."""

    def __init__(self, append: Callable[[Config, argparse.Namespace], Coroutine[Any, Any, Result]], argument: str, **how: Any) -> None:
        self._append, self._argument, self._how = append, argument, how

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add its flags."""
        parser.add_argument(self._argument, **self._how)
        if self._argument != "--index":
            owner.add_index_argument(parser)
        owner.add_arguments(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Append the record. Returns 0 when it took effect, 1 when it did not."""
        outcome, done, facts = asyncio.run(self._append(load(arguments.config), arguments))
        return owner.report(outcome, done, facts, as_json=arguments.json)


async def _activate(config: Config, arguments: argparse.Namespace) -> Result:
    version = arguments.version
    if not 1 <= version <= FORMAT_VERSION:
        raise ConfigurationError(
            f"this software reads format versions 1 to {FORMAT_VERSION}, not {version}: for a higher one run the command of newer software"
        )
    async with owner.replayed(config, arguments, "activate") as (log, key):
        if version in log.state.formats:
            raise ConfigurationError(f"format version {version} is active already: {', '.join(map(str, sorted(log.state.formats)))}")
        return await log.append(Activate(version), key), f"format version {version} is active", {"format_version": version}


async def _retire(config: Config, arguments: argparse.Namespace) -> Result:
    async with owner.replayed(config, arguments, "retire") as (log, key):
        state = log.joiner.incarnations.named(arguments.name)
        if state is None:
            names = sorted(log.joiner.incarnations.names_since(0))
            shown = ", ".join(names[:NAMES_SHOWN]) + (" and more" if len(names) > NAMES_SHOWN else "")
            raise ConfigurationError(f"worker {arguments.name!r} has no incarnation to retire. Workers that have one: {shown or 'none'}")
        done = f"worker {state.name} (incarnation {state.incarnation}) is retired: it has no vote until it registers again"
        return await log.append(Retire(state.incarnation), key), done, {"name": state.name, "incarnation": state.incarnation}


async def _settle(config: Config, arguments: argparse.Namespace) -> Result:
    async with owner.opened(config, "settle") as log:
        key = owner.load_owner_key(config, arguments.owner_key, log.genesis)
        state = await log.state_in(arguments.index)
        assert state is not None
        view = History(state.effects).view
        if state.log_state is not None and view.seen <= state.log_state.settled:
            raise ConfigurationError(
                f"a history of {state.log_state.settled} records is settled already, and the history of this index has {view.seen}:"
                " name an index with a longer history"
            )
        # The effect of the record depends on both topics, so read both from the index's offsets on.
        await log.replay(state)
        log_state = log.state
        if (hole := log.joiner.hole_offset) is not None:  # the record lands behind it, where another key may be in force
            _, log_state = await read_ahead(log.log, log_state, hole + 1, log.joiner.history)
        done = f"the history of {view.seen} records with the hash {view.history.hex()} is settled as the valid one"
        return await log.append(Settle(view, log_state.key_to_settle), key), done, {"seen": view.seen, "history": view.history.hex()}


async def _extend(config: Config, arguments: argparse.Namespace) -> Result:
    count = arguments.count
    if not 1 <= count <= PARTITIONS_MAX:
        raise ConfigurationError(f"the number of payload partitions, {count}, should be 1 to {PARTITIONS_MAX}")
    async with owner.replayed(config, arguments, "partitions") as (log, key):
        before = log.state.payload_partitions
        if count <= before:
            raise ConfigurationError(f"the log has {before} payload partitions, and {count} are not more: their number only grows")
        if isinstance(log.log, EmbeddedLog):
            log.log.add_payload_partitions(count)
        else:
            await add_partitions(config.log.bootstrap, config.log.topic_prefix, count, config.kafka_security)
            await _until_led(log.log, count)
        facts = {"payload_partitions": count, "payload_partitions_before": before}
        return await log.append(Partitions(count), key), f"the log has {count} payload partitions, {before} before", facts


async def _until_led(log: Log, count: int) -> None:
    """Wait until each of the partitions has a leader. Raises `NotReady` after `LEADERS_S_MAX`, before any record is appended."""

    async def check() -> None:
        await log.has_partitions(count)
        await log.offsets()
        if missing := set(range(count)) - log.leaders().keys():
            raise NotReady(f"payload partition {min(missing)} has no leader yet")

    try:
        await when_ready(check)
    except NotReady as problem:
        raise NotReady(f"{problem}, after {LEADERS_S_MAX:g} s. No record was appended; run the same command again") from None


COMMANDS = {
    "activate": OwnerCommand(
        _activate, "version", type=int, metavar="VERSION", help="the format version; every worker with a vote must read it already"
    ),
    "partitions": OwnerCommand(_extend, "count", type=int, metavar="N", help="the new number of payload partitions, more than the log has"),
    "retire": OwnerCommand(_retire, "name", metavar="NAME", help="the name under which the worker serves; if it still runs, it stops"),
    "settle": OwnerCommand(
        _settle,
        "--index",
        required=True,
        type=Path,
        metavar="DIR",
        help="the index with the valid history: the folder of a worker's name under index.directory. Workers with another history stop",
    ),
}
