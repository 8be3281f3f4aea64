"""Segments in a folder, streamed by real workers from real brokers."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from deploy.local import Cluster
from notary import cli
from notary.archive.archived import ArchivedLog
from notary.archive.settings import SealCommand, Sealed
from notary.config import load
from notary.keys import verifier_keys
from notary.open_log import open_log
from ordering.connection import admin
from ordering.topics import topic_names
from tests.kafka.reading_back import read_log_records, records_of
from tests.notary.http.checked_client import CheckedClient
from tests.notary.party import Bank, spend
from tests.notary.process import NotaryDirectory, NotaryProcess

pytestmark = pytest.mark.kafka
WAIT_S_MAX = 120.0


def until_sealed(client: CheckedClient) -> None:
    """Wait until the worker has sent a command after now, and all of it is sealed."""
    began_s = time.monotonic()
    while client.metric("notary_archive_behind_seconds") > time.monotonic() - began_s:
        assert time.monotonic() < began_s + WAIT_S_MAX
        time.sleep(0.05)


def test_segments_are_the_log(
    kafka_cluster: Cluster,
    kafka_prefix: str,
    tmp_path: Path,
    bank: Bank,
    notary_process: Callable[..., NotaryProcess],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A killed worker's turn passes to another one; the segments of both are an archive with the log's records, each once."""
    directory = NotaryDirectory.create(tmp_path / "notary", options=["--kafka", kafka_cluster.bootstrap, "--topic-prefix", kafka_prefix])
    directory.register(bank)
    settings = {"ARCHIVE_URL": tmp_path / "segments", "ARCHIVE_EVERY_S": 1}

    def run(action: str, *flags: str, code: int = 0) -> str:
        capsys.readouterr()
        given = ["archive", action, "--archive", str(tmp_path / "archive"), "--url", str(tmp_path / "segments")]
        found = cli.main([*given, "--config", str(directory.config), "--json", *flags])
        printed = capsys.readouterr()
        assert found == code, printed.out + printed.err
        return printed.out or printed.err

    first, second = (notary_process(directory.config, name, settings=settings) for name in ("w1", "w2"))
    with CheckedClient(first.url) as client:
        client.decide(bank, spend())
        until_sealed(client)
    assert json.loads(run("fetch"))["range"] == 1
    first.kill()
    with CheckedClient(second.url) as client:
        client.decide(bank, *[spend() for _ in range(50)])
        until_sealed(client)
        assert client.metric("notary_archive_segments_total") >= 1
    assert second.stop() == 0
    assert json.loads(run("fetch"))["range"] == 2
    assert json.loads(run("fetch"))["range"] == 0
    archive = ArchivedLog(tmp_path / "archive")
    assert archive.unlisted() == []
    held = asyncio.run(records_of(archive))
    there = asyncio.run(read_log_records(load(directory.config)))
    assert held == {partition: there[partition][: len(records)] for partition, records in held.items()}
    missing = [record for partition, records in there.items() for record in records[len(held[partition]) :]]
    assert all(len(record.value or b"") < 1_000 for record in missing), "only what the end of the second worker appended"

    # The killed worker may have left a file without a manifest, or one with records that the other has sealed too. The latest is read.
    latest = max((tmp_path / "segments" / "manifests").iterdir(), key=lambda each: each.stat().st_mtime_ns).read_text()
    file = next(each for each in (tmp_path / "segments" / "files").iterdir() if each.name in latest)
    (tmp_path / "archive").rename(tmp_path / "complete")
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    assert f"files/{file.name} of" in run("fetch", code=2)
    file.write_bytes(content)
    shutil.rmtree(tmp_path / "archive")
    (tmp_path / "complete").rename(tmp_path / "archive")
    assert json.loads(run("prune"))["removed"] == []
    removed = json.loads(run("prune", "--margin-s", "0"))["removed"]
    assert removed
    lasts = [each.read_text() for each in (tmp_path / "segments" / "manifests").iterdir()]  # the next process continues behind them
    assert 1 <= len(lasts) <= len([records for records in held.values() if records])
    assert all(any(file.name in last for last in lasts) for file in (tmp_path / "segments" / "files").iterdir())


def test_a_process_goes_on_when_the_brokers_are_back(kafka_cluster: Cluster, kafka_prefix: str, tmp_path: Path) -> None:
    """After a command that the log could not serve, the same process takes the next one: a new one would read all manifests again."""
    directory = NotaryDirectory.create(tmp_path / "notary", options=["--kafka", kafka_cluster.bootstrap, "--topic-prefix", kafka_prefix])
    config = load(directory.config)
    key = verifier_keys(config.key_files).last[0].public_key.hex()
    commands = [msgspec.json.encode(SealCommand(1, key, payload_partitions=count)) for count in (10_000, 1)]
    flags = ["--config", str(directory.config), "--url", str(tmp_path / "segments")]
    program = [sys.executable, "-P", "-m", "notary", "archive", "stream", *flags]
    ended = subprocess.run(program, input=b"\n".join(commands), capture_output=True, timeout=WAIT_S_MAX)
    answers = [msgspec.json.decode(line, type=Sealed) for line in ended.stdout.splitlines()]
    assert len(answers) == 2, ended.stderr.decode()
    assert "10000" in answers[0].problem
    assert answers == [Sealed(problem=answers[0].problem, goes_on=True), Sealed(segments=1, records=1)]
    assert ended.returncode == 0


def test_deleted_records_that_no_segment_has_are_named(
    kafka_cluster: Cluster, kafka_prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process seals what is left and names both offsets, and `fetch` refuses the gap."""
    directory = NotaryDirectory.create(tmp_path / "notary", options=["--kafka", kafka_cluster.bootstrap, "--topic-prefix", kafka_prefix])
    config = load(directory.config)
    key = verifier_keys(config.key_files).last[0].public_key.hex()
    flags = ["--config", str(directory.config), "--url", str(tmp_path / "segments")]

    async def append(count: int) -> None:
        log = await open_log(config)
        writer = await log.open_writer()
        for number in range(count):
            await writer.append(1, b"key", b"%d" % number)
        await writer.close()
        await log.close()

    async def delete(before: int) -> None:
        async with admin(kafka_cluster.bootstrap, "test", None, 60_000) as client:
            await client.delete_records({TopicPartition(topic_names(kafka_prefix)[1], 1): RecordsToDelete(before)})

    def seal() -> Sealed:
        program = [sys.executable, "-P", "-m", "notary", "archive", "stream", *flags]
        command = msgspec.json.encode(SealCommand(1, key, payload_partitions=1))
        ended = subprocess.run(program, input=command, capture_output=True, timeout=WAIT_S_MAX)
        return msgspec.json.decode(ended.stdout, type=Sealed)

    asyncio.run(append(1))
    assert seal() == Sealed(segments=1, records=2)
    asyncio.run(append(4))
    asyncio.run(delete(3))
    sealed = seal()
    assert sealed == Sealed(segments=1, records=2, gap=sealed.gap)
    assert sealed.gap.startswith("payload partition 1 is sealed up to offset 1, and the log begins at 3: the records between were deleted")
    assert cli.main(["archive", "fetch", *flags, "--archive", str(tmp_path / "archive")]) == 2
    refused = r"payload partition 1 is archived up to offset 1, and the next segment, .*, begins at 3"
    assert re.search(refused, capsys.readouterr().err)
