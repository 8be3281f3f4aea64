"""All brokers are destroyed with their disks. The log is restored from the segments that a worker had streamed to S3."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local import Cluster
from notary import cli
from tests.notary.archive.test_stream import until_sealed
from tests.notary.http.checked_client import CheckedClient
from tests.notary.party import Bank, fresh_state, spend
from tests.notary.process import NotaryDirectory, NotaryProcess
from tests.notary.snapshots import test_store_s3

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(600)]
server, s3 = test_store_s3.server, test_store_s3.s3
URL = f"s3://{test_store_s3.BUCKET}/segments"


@pytest.mark.usefixtures("s3")
@pytest.mark.nightly
def test_the_loss_of_all_brokers_loses_seconds(tmp_path: Path, command: Callable[..., int]) -> None:
    """After the loss of every broker's disk all that was sealed is decided as before, and no state is spent twice."""
    bank, coin = Bank(), fresh_state()
    requests = [spend(coin), *[spend() for _ in range(20)]]
    with Cluster.create(tmp_path / "cluster", 1) as cluster:
        directory = NotaryDirectory.create(tmp_path / "notary", options=["--kafka", cluster.bootstrap, "--topic-prefix", "notary"])
        directory.register(bank)
        settings = {"ARCHIVE_URL": URL, "ARCHIVE_EVERY_S": 1}
        with NotaryProcess.start(directory.config, settings=settings) as worker, CheckedClient(worker.url) as client:
            decisions = [client.decide(bank, request)[0] for request in requests[:10]]
            until_sealed(client)
            assert command("archive", "--bootstrap", cluster.bootstrap, "--archive", tmp_path / "archive", "--quiet") == 0
            decisions += [client.decide(bank, request)[0] for request in requests[10:]]
            until_sealed(client)
            assert client.metric("notary_archive_segments_total") >= 2
            assert client.metric("notary_archive_failed_total") == 0
            worker.kill()
    assert not (tmp_path / "cluster").exists()
    shutil.rmtree(directory.path / "index")
    shutil.copytree(tmp_path / "archive", tmp_path / "nightly")

    def fetch(archive: str) -> None:
        given = ["--archive", tmp_path / archive, "--url", URL, "--config", directory.config]
        assert cli.main(["archive", "fetch", *map(str, given)]) == 0

    fetch("alone")
    fetch("nightly")
    assert command("verify", "--archive", tmp_path / "nightly", "--out", tmp_path / "verified", "--quiet") == 0
    with Cluster.create(tmp_path / "new", 1) as cluster:
        for prefix, archive in (("first", "alone"), ("second", "nightly")):
            assert command("restore", "--bootstrap", cluster.bootstrap, "--prefix", prefix, "--archive", tmp_path / archive, "--quiet") == 0
            log = {"LOG_BOOTSTRAP": cluster.bootstrap, "LOG_TOPIC_PREFIX": prefix}
            with NotaryProcess.start(directory.config, f"worker-{prefix}", settings=log) as worker, CheckedClient(worker.url) as client:
                assert [client.decide(bank, request)[0] for request in requests] == decisions
                assert client.decide(bank, spend(coin))[0]["outcome"] == "rejected"
                assert worker.stop() == 0
