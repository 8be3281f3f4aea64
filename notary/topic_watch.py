"""`TopicWatch`: checks the topics' settings and the brokers' certificates while a worker runs, since both may change after its start.

If retention is switched on, Kafka deletes records; a lower `min.insync.replicas` can lose them. Stopping the worker would not help. So the
worker reports the problem in log lines, in `notary_topic_problems` and in `/readyz?verbose`, until the settings are valid again. So does
`notary mirror` for the mirror's topics, without `/readyz`.
"""

import asyncio
import logging
from typing import Final

from notary.config import Config
from ordering.errors import NotReady
from ordering.kafka import KafkaLog
from ordering.log import Log
from ordering.topics import find_problems

logger = logging.getLogger("notary.topics")

INTERVAL_S: Final = 60.0


class TopicWatch:
    """Checks the topics of a log, or of a mirror. An embedded log has no topics, and is not checked."""

    def __init__(self, config: Config, log: Log | None = None, interval_s: float = INTERVAL_S, *, mirror: bool = False) -> None:
        """`log`: the open log, whose brokers' certificates are checked. `mirror`: the configured log is a mirror."""
        self._config = config
        self._log = log
        self._interval_s = interval_s
        self._mirror = mirror
        self.problems: tuple[str, ...] = ()
        """The settings that may lose acknowledged records, a sentence each, as of the last check that succeeded."""

    async def run(self) -> None:
        """Check the certificates at once, then both at every interval, until cancelled."""
        if self._config.log.kind != "kafka":
            return
        while True:
            await self.look_at_certificates()
            await asyncio.sleep(self._interval_s)
            await self.check()

    async def look_at_certificates(self) -> None:
        """Read the expiry of each broker's certificate, for `notary_broker_certificate_expiry_seconds`."""
        if not isinstance(self._log, KafkaLog):
            return
        try:
            await self._log.see_certificates()
        except Exception as problem:  # any error, as in `check`
            logger.warning("the brokers' certificates cannot be checked: %s", problem)

    async def check(self) -> None:
        """Check the settings once, and log what changed."""
        config = self._config
        try:
            found = await find_problems(config.log.bootstrap, config.log.topic_prefix, config.kafka_security, mirror=self._mirror)
            problems = tuple(found)
        except NotReady as problem:
            logger.info("the topics' settings cannot be read now, trying again: %s", problem)
            return
        except Exception as problem:  # any error: a check that decides nothing must not stop a worker
            problems = (f"The settings of the topics cannot be read: {problem}",)
        for sentence in problems:
            if sentence not in self.problems:
                logger.error("acknowledged records may be lost: %s", sentence)
        if self.problems and not problems:
            logger.info("the topics' settings are valid again")
        self.problems = problems
