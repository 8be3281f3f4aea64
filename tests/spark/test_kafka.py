"""Tests a log on a real broker: verified there, archived, restored; and damaged logs that cannot be verified.

Brokers that cannot be reached with the given settings are reported, and no query changes anything.
"""

import asyncio
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import for_code
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, load_pem_private_key
from pyspark.sql import DataFrame, SparkSession

from notary import keys as keys_of_notary
from notary.config import load
from ordering.records import Entry, Fence, Register, decode
from ordering.signatures import SigningKey
from spark_join.archiving import Archived, archive
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify
from spark_join.log.archive import read_archive
from spark_join.log.client import Kafka, client_settings, decode_properties, parse_properties
from spark_join.log.kafka import Admin, OffsetRange, read_log_offsets
from spark_join.log.reading import read_kafka
from spark_join.log.restore import TOPIC_SETTINGS, Restored
from spark_join.state import start
from spark_join.verify import Verified, verify
from tests.checkers.replay import Replayed, replay
from tests.clients.load import Load, until
from tests.clients.party import spend, state
from tests.kafka.reading_back import read_log_records
from tests.kafka.workers import NAME, Notary, Worker, opened
from tests.notary.certificates import Authority
from tests.spark.broker import Broker
from tests.spark.nights import keep
from tests.spark.second_writer import Planted, plant

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
OFTEN: dict[str, Any] = {"worker_checkpoint_interval_ms": 200}

SOON = {"default.api.timeout.ms": "1500", "request.timeout.ms": "1000"}


def _archived(spark: SparkSession, kafka: Kafka, folder: Path) -> list[Archived]:
    return list(archive(spark, kafka, folder, lambda stage: None, 200_000))


def _first_night(spark: SparkSession, folder: Path, keys: Mapping[str, str], out: Path) -> Verified:
    """Verify the log in the archive in `folder`, and keep the state."""
    verified = verify(spark, read_archive(spark, folder), start(spark), keys, Stages(spark, out / "stages"))
    keep(spark, out, verified)
    return verified


def _reported(violations: Iterable[Mapping[str, Any]]) -> Planted:
    """Returns the violations of the log, in the order of offsets."""
    return sorted([(row["type"], row["position"], row["offset"], row["id"]) for row in violations], key=itemgetter(2))


async def _shown(*source: object) -> list[str]:
    """Returns the lines of `notary log show`."""
    command = [sys.executable, "-m", "notary", "log", "show", *map(str, source), "--payload"]
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "  genesis " in done.stdout
    return done.stdout.splitlines()


def _over_tls(spark: SparkSession, broker: Broker, prefix: str) -> Kafka:
    return Kafka(broker.tls, prefix, parse_properties(spark, broker.config.read_text()))


def _rows(records: DataFrame) -> list[tuple[object, ...]]:
    return sorted([tuple(row) for row in records.select("partition", "offset", "append_time_ms", "key", "value").collect()])


def _check_settings(kafka: Kafka) -> None:
    for topic in (kafka.ordering, kafka.payload):
        wanted = {"message.timestamp.type": "LogAppendTime", **TOPIC_SETTINGS}
        assert {name: Admin(kafka).setting(topic, name) for name in wanted} == wanted


async def _replayed(notary: Notary) -> Replayed:
    return replay(await read_log_records(load(notary.directory / "notary.toml")))


async def _traffic(notary: Notary, workers: Sequence[Worker], label: str) -> None:
    """Send submissions, every other of which consumes a consumed state; each goes to all workers at once, so the log has it repeatedly."""
    for number in range(20):
        submission = notary.party.submission(spend(state(f"{label} {number // 2}"), content=str(number)))
        decided = await asyncio.gather(*[notary.client.decide([worker.url], submission) for worker in workers])
        assert decided == decided[:1] * len(workers)


async def _duplicate_names(notary: Notary, one: Worker, peer: Worker) -> Worker:
    """Run a second process with that name, so that each fences the other until one stops; returns the one that stays."""
    rival = notary.start(one.name, process="duplicate", index="elsewhere", **OFTEN)
    async with Load(notary.client, notary.party, [one.url, rival.url, peer.url], seed=5):
        await until(lambda: any(worker.process.poll() is not None for worker in (one, rival)))
    (stays,) = [worker for worker in (one, rival) if worker.process.poll() is None]
    return await stays.ready()


async def test_log_of_real_workers(
    spark: SparkSession,
    kafka_broker: Broker,
    tmp_path: Path,
    kafka_prefix: str,
    command: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A log of workers that crashed and shared a name, with a hole and its fill, an orphan and its fence, and repetitions, is clean.

    It is verified in two runs, from its archive and then from Kafka. Its archive of several ranges gives the same records; restored, it is
    the same to the byte and the millisecond, and a worker that replays it reaches the same root.

    Before the second run a second writer appends one violation of each type: exactly these are found, with exit code 1. The archive gives
    the same records then. `notary log show` prints the same for the archive as for the brokers.
    """
    kafka, folder = Kafka(kafka_broker.bootstrap, kafka_prefix, {}), tmp_path / "archive"
    async with opened(tmp_path / "notary", kafka_broker.bootstrap, kafka_prefix, 2) as notary:
        dying = notary.start("a", entry=("-m", "tests.kafka.crashing_worker", "entry-sent", "3"), **OFTEN)
        silent = notary.start("c", entry=("-m", "tests.kafka.crashing_worker", "payload-sent", "1"), **OFTEN)
        # A fence is proposed only while payloads need memory: with this limit one orphan does.
        other = notary.start("b", worker_worker_timeout_ms=500, worker_buffer_bytes_max=2_000, **OFTEN)
        await asyncio.gather(dying.ready(), silent.ready(), other.ready())
        fatal = notary.party.submission(spend(state("fatal")))
        for number in range(2):
            await notary.client.decide([dying.url], notary.party.submission(spend(state(f"before {number}"))))
        await notary.client.ask_until_broken(dying.url, fatal)
        await notary.client.decide([other.url], fatal)
        assert await dying.ended() == -9
        await notary.client.ask_until_broken(silent.url, notary.party.submission(spend(state("an orphan's"))))
        assert await silent.ended() == -9
        (first,) = await asyncio.to_thread(_archived, spark, kafka, folder)
        keys = {notary.party.name: notary.party.public_pem.decode()}
        monday = await asyncio.to_thread(_first_night, spark, folder, keys, tmp_path / "monday")
        back = await notary.start("a", **OFTEN).ready()
        await _traffic(notary, [back, other], "later")
        await notary.same_height(back, other)
        assert await notary.metric(other, "notary_batches_filled_total ") >= 1
        await asyncio.sleep(0.5)
        await _traffic(notary, [other], "last")
        await notary.until_metric(other, 'notary_log_anomalies_total{kind="orphan-dropped"}')
        back = await _duplicate_names(notary, back, other)
        height = await notary.same_height(back, other)
        for worker in (back, other):
            await worker.stop()
        over_tls = ["--bootstrap", kafka_broker.tls, "--kafka-config", kafka_broker.config]
        log_offsets = await asyncio.to_thread(read_log_offsets, Admin(kafka), kafka)
        half = sum(offset_range.offset_end for offset_range in log_offsets.values()) // 2
        capsys.readouterr()
        words = [*over_tls, "--prefix", kafka_prefix, "--archive", folder, "--range-records", half]
        assert await asyncio.to_thread(command, "archive", *words) == 0
        printed, said = capsys.readouterr()
        ranges = [first, *[msgspec.json.decode(line, type=Archived) for line in printed.splitlines()]]
        assert [each.range for each in ranges] == list(range(1, len(ranges) + 1))
        assert len(ranges) > 2
        assert f"spark_join archive: records of range {len(ranges)}\n" in said
        assert (first.offsets_left, ranges[-1].offsets_left) == (0, 0)
        before = sorted(folder.rglob("*"))
        assert await asyncio.to_thread(_archived, spark, kafka, folder) == []
        assert sorted(folder.rglob("*")) == before

        live, archived = await asyncio.to_thread(read_kafka, spark, kafka), read_archive(spark, folder)
        assert live.log_end_offsets == archived.log_end_offsets
        assert live.log_end_offsets.keys() == {("ordering", 0), ("payload", 0), ("payload", 1)}
        assert (monday.notary_name, monday.skipped.get("signature")) == (NAME, None)
        assert _rows(live.ordering) == _rows(archived.ordering)
        assert _rows(live.payload) == _rows(archived.payload)
        records = sum(each.records for each in ranges)
        assert records == len(_rows(live.ordering)) + len(_rows(live.payload))
        since = {topic_partition: end // 2 for topic_partition, end in live.log_end_offsets.items()}
        live_rest, archived_rest = await asyncio.to_thread(read_kafka, spark, kafka, since), read_archive(spark, folder, since)
        assert live_rest.log_end_offsets == archived_rest.log_end_offsets == archived.log_end_offsets
        assert _rows(live_rest.ordering) == _rows(archived_rest.ordering) == _rows(live.ordering)[since["ordering", 0] :]
        assert _rows(live_rest.payload) == _rows(archived_rest.payload)
        written = [decode(bytes(row.value)) for row in live.ordering.collect()]
        assert [sum(isinstance(each, kind) for each in written) >= times for kind, times in ((Fence, 1), (Register, 6))] == [True, True]
        assert sum(len(each.transaction_ids) for each in written if isinstance(each, Entry)) > height

        copy = _over_tls(spark, kafka_broker, f"{kafka_prefix}-copy")
        assert await asyncio.to_thread(command, "restore", *over_tls, "--prefix", copy.prefix, "--archive", folder) == 0
        restored = msgspec.json.decode(capsys.readouterr().out, type=Restored)
        assert restored.appended == sum(restored.records.values()) == records
        again = await asyncio.to_thread(read_kafka, spark, copy)
        assert (_rows(again.ordering), _rows(again.payload)) == (_rows(live.ordering), _rows(live.payload))
        await asyncio.to_thread(_check_settings, copy)
        replaying = await notary.start("c", index="replayed", log_topic_prefix=copy.prefix).ready()
        assert await notary.same_height(replaying) == height
        checkpoint = (await notary.http.get(replaying.url, "/v1/checkpoint")).body.decode().splitlines()
        assert checkpoint[1] == str(height)

        key = SigningKey(keys_of_notary.load(notary.directory / "notary-key.pem").private_bytes_raw())
        found = await _replayed(notary)
        assert len(found.decisions) == height
        assert msgspec.json.decode(f'"{checkpoint[2]}"', type=bytes) == found.root(height)
        planted = await plant(kafka.bootstrap, kafka.prefix, key, notary.party, found)
        (tmp_path / "parties.json").write_text(json.dumps(keys))
        later = ["--checkpoint-from", tmp_path / "monday", "--parties", tmp_path / "parties.json", "--out", tmp_path / "tuesday"]
        assert await asyncio.to_thread(command, "verify", *over_tls, "--prefix", kafka_prefix, *later) == 1
        report = json.loads((tmp_path / "tuesday/report.json").read_text())
        assert (report["continued_from"]["decisions"], report["decisions"]) == (monday.decided, height + 4)
        assert (monday.violations.count(), report["root"]) == (0, (await _replayed(notary)).root(height + 4).hex())
        assert height > monday.decided > 0
        assert monday.outcomes["input-conflict"] + report["outcomes"]["input-conflict"] >= 20
        assert monday.checkpoints.compared + report["checkpoints"]["compared"] > 1
        assert report["violations"] == {type_: 1 for type_, *_ in planted}
        assert report["skipped"]["signature"]["records"] == 1
        assert _reported(pq.read_table(tmp_path / "tuesday/violations").to_pylist()) == planted
        assert await asyncio.to_thread(_archived, spark, kafka, folder)
        live, archived = await asyncio.to_thread(read_kafka, spark, kafka), read_archive(spark, folder)
        assert (_rows(live.ordering), _rows(live.payload)) == (_rows(archived.ordering), _rows(archived.payload))
        assert await _shown("--config", notary.directory / "notary.toml") == await _shown("--archive", folder)


def test_a_missing_log_is_reported_with_advice(spark: SparkSession, kafka_broker: Broker, kafka_prefix: str) -> None:
    """Missing topics, and brokers that are down or speak another protocol, are reported within the time limit, with advice."""
    with pytest.raises(CouldNotVerify, match=rf"has no topic {kafka_prefix}\.ordering, .* --prefix"):
        read_kafka(spark, Kafka(kafka_broker.bootstrap, kafka_prefix, {}))
    for bootstrap, properties in (
        ("127.0.0.1:1", SOON),
        (kafka_broker.tls, SOON),
        (kafka_broker.bootstrap, SOON | {"security.protocol": "SSL"}),
        (kafka_broker.tls, {"security.protocol": "SSL"}),  # a certificate authority that this machine does not know
        ("nowhere", {}),
        ("127.0.0.1:port", {}),
        ("127.0.0.1:99999", {}),  # Python's sockets raise an `OverflowError`
    ):
        with pytest.raises(CouldNotVerify, match=rf"Kafka at {bootstrap} .*: \w+[eE]rror\b.*--kafka-config and --kafka-option"):
            read_kafka(spark, Kafka(bootstrap, kafka_prefix, properties))


def test_a_broker_without_a_reply_takes_limited_time() -> None:
    """A broker that accepts connections and sends nothing is given up at the deadline, whichever of the two limits is lower."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bootstrap = f"127.0.0.1:{silent.getsockname()[1]}"
        for limits, text in ((SOON, rf"TimeoutError \({bootstrap}\)"), ({"default.api.timeout.ms": "200"}, "no reply for 200 ms")):
            with pytest.raises(CouldNotVerify, match=rf"Kafka at {bootstrap} does not describe its cluster: .*{text}"):
                Admin(Kafka(bootstrap, "p", limits)).brokers()
    for value in ("0", "-1", "soon", str(2**31), "9" * 5000):
        with pytest.raises(CouldNotVerify, match=rf"request\.timeout\.ms is '{value}': it should be a number of milliseconds"):
            Admin(Kafka("b:1", "p", {"request.timeout.ms": value}))


def test_no_query_creates_a_topic(kafka_broker: Broker, kafka_prefix: str) -> None:
    """Brokers that create topics on demand, as Kafka's do by default, get no demand from a query about a missing topic."""
    kafka = Kafka(kafka_broker.bootstrap, kafka_prefix, {})
    admin, topic = Admin(kafka), kafka.ordering
    hasty = Admin(msgspec.structs.replace(kafka, properties={"default.api.timeout.ms": "500"}))
    assert (admin.partitions(topic), admin.offsets_at(topic, 0), admin.brokers()) == (None, {}, 1)
    for query in (
        lambda: read_log_offsets(admin, kafka),
        lambda: hasty.replicas(topic),
        lambda: hasty.setting(topic, "retention.ms"),
        lambda: hasty.change(topic, {"retention.ms": "1"}),
        lambda: hasty._offsets(topic, 1, 0),
    ):
        with pytest.raises(CouldNotVerify, match=rf"{topic}\b"):
            query()
    assert topic not in kafka_broker.topics()
    admin.create({topic: 2}, 1, {})
    assert (admin.partitions(topic), admin.replicas(topic), topic in kafka_broker.topics()) == (2, 1, True)
    with pytest.raises(CouldNotVerify, match=r"does not create .* with 1 replicas: .*TopicAlreadyExistsError"):
        admin.create({topic: 2}, 1, {})


def test_ends_are_read_in_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads that arrive meanwhile are read, so that no entry seems to have lost its own; and records that are deleted meanwhile show."""
    asked: list[tuple[str, int]] = []

    def offsets(admin: Admin, topic: str, count: int, time_ms: int) -> list[int]:
        asked.append((topic, time_ms))
        return [0] * count

    monkeypatch.setattr(Admin, "partitions", lambda admin, topic: 1)
    monkeypatch.setattr(Admin, "_offsets", offsets)
    kafka, (latest, earliest) = Kafka("127.0.0.1:1", "p", {}), (-1, -2)
    read_log_offsets(Admin(kafka), kafka)
    assert asked == [(kafka.ordering, latest), (kafka.ordering, earliest), (kafka.payload, latest), (kafka.payload, earliest)]


def test_other_settings_stay_unchanged(kafka_broker: Broker, kafka_prefix: str) -> None:
    """A change of a topic's settings leaves those that it does not name, and None restores a default."""
    admin, topic = Admin(Kafka(kafka_broker.bootstrap, kafka_prefix, {})), f"{kafka_prefix}.ordering"
    admin.create({topic: 1}, 1, {"flush.messages": "1", "segment.ms": "5000"})
    admin.change(topic, {"flush.messages": None, "max.message.bytes": "4000"})
    names = ("flush.messages", "segment.ms", "max.message.bytes")
    assert [admin.setting(topic, name) for name in names] == [str(2**63 - 1), "5000", "4000"]


def test_offsets_lie_before_an_open_transaction(kafka_broker: Broker, kafka_prefix: str) -> None:
    """The log end offset is behind the records of an open transaction too; offsets of deleted records are before the log start."""
    kafka_broker.make(kafka_prefix, 2)
    kafka = Kafka(kafka_broker.bootstrap, kafka_prefix, {})
    kafka_broker.append(kafka_prefix, {-1: [b"o1"], 0: [b"p1", b"p2"], 1: [b"p3"]})
    kafka_broker.delete(kafka_prefix, 0, 1)

    async def open_transaction() -> dict[tuple[str, int], OffsetRange]:
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=kafka_prefix) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(kafka.payload, b"p4", partition=1)
            found = await asyncio.to_thread(read_log_offsets, Admin(kafka), kafka)
            await producer.abort_transaction()
        return found

    ends = {("ordering", 0): OffsetRange(0, 1), ("payload", 0): OffsetRange(1, 2), ("payload", 1): OffsetRange(0, 2)}
    assert asyncio.run(open_transaction()) == ends
    assert Admin(kafka).offsets_at(kafka.payload, 0) == {0: 1, 1: 0}
    assert Admin(kafka).offsets_at(kafka.payload, 2**50) == {}


def test_a_moved_leader_is_asked_again(kafka_broker: Broker, kafka_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that do not know a new topic or a new leader yet are asked again; an answer that will not change ends the query."""
    kafka_broker.make(kafka_prefix)
    kafka = Kafka(kafka_broker.bootstrap, kafka_prefix, {})
    admin, send, asked = Admin(kafka), Admin._send, list[str]()
    codes = {"MetadataRequest": [3, 5], "OffsetRequest": [6]}

    async def fail_first(self: Admin, host: str, port: int, request: Any) -> Any:
        asked.append(type(request).__name__)
        if codes[asked[-1]]:
            raise for_code(codes[asked[-1]].pop())()
        return await send(self, host, port, request)

    monkeypatch.setattr(Admin, "_send", fail_first)
    assert admin._offsets(kafka.ordering, 1, -1) == [0]
    assert asked == [*["MetadataRequest"] * 3, "OffsetRequest", "MetadataRequest", "OffsetRequest"]
    codes["OffsetRequest"] = [29]
    with pytest.raises(CouldNotVerify, match=r"does not return the offsets of .*TopicAuthorizationFailedError"):
        admin._offsets(kafka.ordering, 1, -1)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_properties_in_either_encoding(encoding: str) -> None:
    """A properties file may be in UTF-8, or in Latin-1, which Java's own tools read."""
    text = "ssl.truststore.location=/etc/schl\u00fcssel.pem\n"
    assert decode_properties(text.encode(encoding)) == text


@pytest.mark.parametrize("more", [{}, {"ssl.key.password": "x" * 3000}])
def test_an_encrypted_key_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Mapping[str, str]) -> None:
    """An encrypted key without its password is reported, and OpenSSL does not ask at the terminal; so is a password that is too long."""
    pair = Authority().server()
    key = load_pem_private_key(pair.key, None)
    pem = tmp_path / "client.pem"
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    pem.write_bytes(encrypted + pair.certificate)
    load = ssl.SSLContext.load_cert_chain

    def load_unless_asked(context: ssl.SSLContext, file: str, *, password: str | None) -> None:
        assert password is not None, "OpenSSL would ask"
        load(context, file, password=password)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load_unless_asked)
    given = {"security.protocol": "SSL", "ssl.keystore.type": "PEM", "ssl.keystore.location": str(pem), **more}
    with pytest.raises(CouldNotVerify, match=r"ssl\.keystore\.location cannot be used"):
        client_settings(Kafka("b:1", "p", given))


def test_properties_for_the_producer(spark: SparkSession, kafka_broker: Broker) -> None:
    """The producer of a restore connects with the given properties, or reports what it cannot do."""
    tls = client_settings(Kafka("b:1", "p", parse_properties(spark, kafka_broker.config.read_text())))
    context = tls["ssl_context"]
    assert (context.verify_mode, context.check_hostname, len(context.get_ca_certs())) == (ssl.CERT_REQUIRED, True, 1)
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = rf'sasl.jaas.config={module} required username\="u" password\="p\\"q";'
    text = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism: SCRAM-SHA-512\nclient.id=x\n{jaas}"
    assert client_settings(Kafka("b:1", "p", parse_properties(spark, text))) == {
        "bootstrap_servers": "b:1",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": 'p"q',
    }
    for given, message in (
        ({"ssl.provider": "x"}, r"cannot connect with ssl\.provider"),
        ({"ssl.truststore.location": "x.jks"}, r"set ssl\.truststore\.type=PEM"),
        ({"ssl.keystore.location": "/nowhere", "ssl.keystore.type": "PEM"}, r"cannot be used: .*No such file"),
    ):
        with pytest.raises(CouldNotVerify, match=message):
            client_settings(Kafka("b:1", "p", {"security.protocol": "SSL", **given}))
    with pytest.raises(CouldNotVerify, match=r"sasl\.jaas\.config with username"):
        client_settings(Kafka("b:1", "p", {"security.protocol": "SASL_SSL"}))
    with pytest.raises(CouldNotVerify, match="is TLS, and not one of PLAINTEXT, SSL"):
        client_settings(Kafka("b:1", "p", {"security.protocol": "tls"}))
    with pytest.raises(CouldNotVerify, match=r"sasl\.mechanism is GSSAPI, and not one of PLAIN, SCRAM"):
        client_settings(Kafka("b:1", "p", {"security.protocol": "SASL_SSL", "sasl.jaas.config": 'username="u" password="p"'}))
    assert client_settings(Kafka("b:1", "p", {"security.protocol": "ssl"}))["security_protocol"] == "SSL"
