"""A log on a real broker: verified there, archived, restored; and logs that are harmed, of which nothing can be said."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_join.engine.stages import Stages
from spark_join.log.archive import read_archive
from spark_join.log.archiving import Archived, archive
from spark_join.log.client import Admin, Kafka, parse_properties
from spark_join.log.kafka import read_kafka
from spark_join.log.restore import TOPIC_SETTINGS, restore
from spark_join.state.state import start
from spark_join.verify import verify
from tests.asking.party import spend, state
from tests.kafka.workers import NAME, Notary, Worker
from tests.spark.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]

OFTEN = {"worker_checkpoint_interval_ms": 200}


def _untold(stage: str) -> None:
    pass


def _over_tls(spark: SparkSession, broker: Broker, prefix: str) -> Kafka:
    return Kafka(broker.tls, prefix, parse_properties(spark, broker.config.read_text()))


def _rows(records: DataFrame) -> list[tuple[object, ...]]:
    return sorted([tuple(row) for row in records.select("partition", "offset", "append_time_ms", "key", "value").collect()])


async def _traffic(notary: Notary, worker: Worker, label: str) -> None:
    """Submissions, every other of which wants what is consumed."""
    submissions = [notary.party.submission(spend(state(f"{label} {number // 2}"), content=str(number))) for number in range(20)]
    for submission in submissions:
        await notary.client.decide([worker.url], submission)


async def test_log_of_real_workers(spark: SparkSession, kafka_broker: Broker, tmp_path: Path, kafka_prefix: str) -> None:
    """A log of workers of which one crashed is clean; its archive of two ranges gives the same records to verify; restored, it is the same
    to the byte and the millisecond, and a worker that replays it reaches the same root."""
    notary = await asyncio.to_thread(Notary, tmp_path / "notary", kafka_broker.bootstrap, kafka_prefix, 2)
    kafka, folder = Kafka(kafka_broker.bootstrap, kafka_prefix, {}), tmp_path / "archive"
    try:
        dying = notary.start("a", entry=("-m", "tests.kafka.crashing_worker", "entry-sent", "3"), **OFTEN)
        other = notary.start("b", **OFTEN)
        await asyncio.gather(dying.ready(), other.ready())
        fatal = notary.party.submission(spend(state("fatal")))
        for submission in (*(notary.party.submission(spend(state(f"before {number}"))) for number in range(2)), fatal):
            await notary.client.decide([dying.url, other.url], submission)
        assert await dying.ended() == -9
        first = await asyncio.to_thread(archive, spark, kafka, folder, NAME, _untold)
        back = await notary.start("a", **OFTEN).ready()
        await _traffic(notary, back, "later")
        await notary.same_height(back, other)
        assert await notary.metric(other, "notary_batches_filled_total ") == 1
        await asyncio.sleep(0.5)
        await _traffic(notary, other, "last")
        height = await notary.same_height(back, other)
        for worker in (back, other):
            await worker.stop()
        second = await asyncio.to_thread(archive, spark, _over_tls(spark, kafka_broker, kafka_prefix), folder, NAME, _untold)
        assert (first.range, second.range) == (1, 2)
        before = sorted(folder.rglob("*"))
        assert archive(spark, kafka, folder, NAME, _untold) == Archived(None, 0, {})
        assert sorted(folder.rglob("*")) == before

        live, archived = read_kafka(spark, kafka, NAME), read_archive(spark, folder)
        assert (live.notary_name, live.payload_partitions) == (archived.notary_name, archived.payload_partitions) == (NAME, 2)
        assert _rows(live.ordering) == _rows(archived.ordering)
        assert _rows(live.payload) == _rows(archived.payload)
        assert first.records + second.records == len(_rows(live.ordering)) + len(_rows(live.payload))
        since = {place: end // 2 for place, end in live.offsets_end.items()}
        live_rest, archived_rest = read_kafka(spark, kafka, NAME, since), read_archive(spark, folder, since)
        assert live_rest.offsets_end == archived_rest.offsets_end == archived.offsets_end
        assert _rows(live_rest.ordering) == _rows(archived_rest.ordering) == _rows(live.ordering)[since["ordering", 0] :]
        assert _rows(live_rest.payload) == _rows(archived_rest.payload)
        keys = {notary.party.name: notary.party.public_pem.decode()}
        verified = verify(spark, live, start(spark), keys, Stages(spark, tmp_path / "stages"))
        assert verified.violations.count() == 0
        assert verified.decided == height == 43
        assert verified.outcomes["input-conflict"] == 20
        assert verified.roots_compared > 1

        copy = _over_tls(spark, kafka_broker, f"{kafka_prefix}-copy")
        restored = await asyncio.to_thread(restore, spark, copy, folder, _untold)
        assert restored.appended == sum(restored.records.values()) == first.records + second.records
        again = read_kafka(spark, copy, NAME)
        assert (_rows(again.ordering), _rows(again.payload)) == (_rows(live.ordering), _rows(live.payload))
        with Admin(spark, copy) as admin:
            for topic in (copy.ordering, copy.payload):
                assert admin.setting(topic, "message.timestamp.type") == "LogAppendTime"
                assert {name: admin.setting(topic, name) for name in TOPIC_SETTINGS} == TOPIC_SETTINGS
        replaying = await notary.start("c", index="replayed", log_topic_prefix=copy.prefix).ready()
        assert await notary.same_height(replaying) == height
        checkpoint = (await notary.http.get(replaying.url, "/v1/checkpoint")).body.decode().splitlines()
        assert checkpoint[1] == str(height)
        assert msgspec.json.decode(f'"{checkpoint[2]}"', type=bytes) == verified.root
    finally:
        await notary.end()
