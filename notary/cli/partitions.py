"""`notary partitions`: adds payload partitions to a log that is in use (R10).

It first creates the partitions, then appends the `partitions` record. Only after that record may entries name a new partition.

| step | a crash after it leaves |
|---|---|
| the partitions, in Kafka or in the embedded log's store | unused partitions: the same command again continues |
| the record | a complete change: workers apply it when they read the record |
"""

import argparse
import asyncio
import time

from notary.cli import owner
from notary.config import Config, load
from ordering.embedded import EmbeddedLog
from ordering.errors import ConfigurationError, NotReady
from ordering.log import Log
from ordering.records import Partitions
from ordering.topics import PARTITIONS_MAX, add_partitions

LED_S_MAX = 30.0
CHECK_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary partitions`."""
    parser.add_argument("count", type=int, metavar="N", help="the new number of payload partitions, more than the log has")
    owner.add_index_argument(parser)
    owner.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Create and declare the partitions. Returns 0 when the record took effect, 1 when it did not."""
    outcome, before = asyncio.run(_extend(load(arguments.config), arguments))
    done = f"the log has {arguments.count} payload partitions, {before} before"
    facts = {"payload_partitions": arguments.count, "payload_partitions_before": before}
    return owner.report(outcome, done, facts, as_json=arguments.json)


async def _extend(config: Config, arguments: argparse.Namespace) -> tuple[owner.CommandOutcome, int]:
    count = arguments.count
    if not 1 <= count <= PARTITIONS_MAX:
        raise ConfigurationError(f"the number of payload partitions, {count}, should be 1 to {PARTITIONS_MAX}")
    async with owner.opened(config, "partitions") as log:
        key = owner.load_owner_key(config, arguments.owner_key, log.genesis)
        await log.replay(await log.state_in(arguments.index))
        before = log.state.payload_partitions
        if count <= before:
            raise ConfigurationError(f"the log has {before} payload partitions, and {count} are not more: their number only grows")
        if isinstance(log.log, EmbeddedLog):
            log.log.add_payload_partitions(count)
        else:
            await add_partitions(config.log.bootstrap, config.log.topic_prefix, count, config.kafka_security)
            await _until_led(log.log, count)
        return await log.append(Partitions(count), key), before


async def _until_led(log: Log, count: int) -> None:
    """Wait until each of the partitions has a leader. Raises `NotReady` after `LED_S_MAX`, before any record is appended."""
    give_up_s = time.monotonic() + LED_S_MAX
    while True:
        try:
            await log.has_partitions(count)
            await log.offsets()
            missing = set(range(count)) - log.leaders().keys()
            why = f"payload partition {min(missing)} has no leader yet" if missing else ""
        except NotReady as problem:
            why = str(problem)
        if not why:
            return
        if time.monotonic() > give_up_s:
            raise NotReady(f"{why}, after {LED_S_MAX:g} s. No record was appended; run the same command again")
        await asyncio.sleep(CHECK_S)
