"""`notary trim` on a real broker: it frees nothing before all is there, and what stays is enough for every worker with a snapshot."""

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka.protocol.admin import CreateAclsRequest

from notary import cli
from ordering.kafka import KafkaLog
from ordering.log import ORDERING, LogOffsets
from ordering.topics import find_problems
from tests.deploy.forbidden import allowed_of
from tests.deploy.manifests.test_users import ALLOW, LITERAL, PAYLOAD, RESOURCES, Guarded, guarded
from tests.notary.http.checked_client import CheckedClient
from tests.notary.party import Bank, RequestObject, fresh_state, spend
from tests.notary.process import EXIT_S_MAX, NotaryDirectory, NotaryProcess, serve

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(600)]

DELETE = 6


class TrimFixture:
    """A notary on that broker, its archive and the places of its snapshots."""

    def __init__(self, folder: Path, broker: Guarded, command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.broker, self._command, self._capsys = folder, broker, command, capsys
        self.bank = Bank()
        self.directory = NotaryDirectory.create(
            folder / "notary", options=["--kafka", broker.inside, "--topic-prefix", "notary", "--format-version", "1"]
        )
        self.directory.register(self.bank)
        (folder / "trimmer.toml").write_text(
            f"bootstrap = '{broker.outside}'\nsecurity_protocol = 'SSL'\n"
            + "".join([f"{name}_file = '{broker.folder / file}'\n" for name, file in _TLS.items()])
        )

    def decide(self, client: CheckedClient, requests: Sequence[RequestObject]) -> list[dict[str, Any]]:
        """Have each request decided in a batch of its own."""
        return [client.decide(self.bank, request)[0] for request in requests]

    def run(self, *words: object) -> int:
        """Run a command of the notary."""
        return cli.main([*map(str, words), "--config", str(self.directory.config)])

    def archive(self, out: str) -> None:
        """Archive what is new, and verify all of it."""
        archive = self.folder / "archive"
        assert self._command("archive", "--bootstrap", self.broker.inside, "--archive", archive, "--quiet") == 0
        assert self._command("verify", "--archive", archive, "--out", self.folder / out, "--quiet") == 0

    def trim(self, *flags: object, verified: str = "verified", archive: str = "archive", second: str = "second", code: int = 1) -> Any:
        """Run `notary trim`. Returns what it printed: an object, or its complaints."""
        self._capsys.readouterr()
        named = {"--archive": archive, "--verified": verified, "--snapshots": second, "--log-settings": "trimmer.toml"}
        given = [word for flag, file in named.items() for word in (flag, self.folder / file)]
        found = self.run("trim", *given, "--snapshots", self.folder / "first", "--json", *flags)
        printed = self._capsys.readouterr()
        assert found == code, printed.out + printed.err
        return json.loads(printed.out) if printed.out else printed.err

    def offsets(self) -> dict[int, LogOffsets]:
        """Returns the bounds of every topic-partition."""

        async def asked() -> dict[int, LogOffsets]:
            log = await KafkaLog.open(self.broker.inside, "notary")
            try:
                return dict(await log.offsets())
            finally:
                await log.close()

        return asyncio.run(asked())


_TLS = {"ca": "ca.crt", "cert": "trimmer.crt", "key": "trimmer.key"}


async def _may_delete(broker: Guarded) -> None:
    """Give the user `trimmer` its one right."""
    async with broker.admin("") as client:
        answer = await client._send_request(CreateAclsRequest(RESOURCES["topic"], PAYLOAD, LITERAL, "User:CN=trimmer", "*", DELETE, ALLOW))
        assert [code for code, _ in answer.creation_responses] == [0]


@pytest.mark.nightly
def test_old_payloads_are_freed(tmp_path: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    """Each lack is named and frees nothing; then payloads go, decisions and states stay, and only a snapshot makes a new worker."""
    (tmp_path / "broker").mkdir()
    with guarded(tmp_path / "broker", ["trimmer"]) as broker:
        fixture = TrimFixture(tmp_path, broker, command, capsys)
        config, coin = fixture.directory.config, fresh_state()
        requests = [spend(coin), *[spend() for _ in range(49)]]
        with NotaryProcess.start(config) as worker, CheckedClient(worker.url) as client:
            decisions = fixture.decide(client, requests)
            assert worker.stop() == 0
        assert len(fixture.trim(archive="none", verified="none", second="first")["missing"]) == 4
        fixture.archive("early")
        with NotaryProcess.start(config) as worker, CheckedClient(worker.url) as client:
            decisions += fixture.decide(client, more := [spend() for _ in range(10)])
            assert worker.stop() == 0
        requests += more
        (none,) = fixture.trim(verified="early")["missing"][:1]
        assert f"a snapshot of this log in {tmp_path / 'second'} that verifies: there is none" in none
        for place in ("first", "second"):
            assert fixture.run("snapshot", "create", "--name", "worker-1", "--url", tmp_path / place) == 0
        assert "the archive does not have" in fixture.trim(verified="early")["missing"][0]
        fixture.archive("verified")
        assert "the report has 50" in fixture.trim(verified="early")["missing"][0]
        assert fixture.trim()["missing"] == ["format version 2, in which the mark counts: notary activate 2"]
        assert fixture.run("activate", "2") == 0
        assert "more than 59 decisions" in fixture.trim("--before", 59)["missing"][0]
        damaged = shutil.copytree(tmp_path / "archive", tmp_path / "damaged") / "payload/partition=3"
        file = next(damaged.glob("*.parquet"))
        file.write_bytes(file.read_bytes()[:-1])
        assert f"{file} is damaged" in fixture.trim(archive="damaged")["missing"][0]

        assert "give --yes" in fixture.trim(code=2)
        before = fixture.offsets()
        assert "the ACL operation Delete" in fixture.trim("--yes", code=2)  # the right comes now: the mark is written, and stays
        assert fixture.offsets()[0] == before[0]
        asyncio.run(_may_delete(broker))
        done = fixture.trim("--yes", code=0)
        assert (done["done"], done["position"], done["trimmed_before"]) == (True, 60, 60)
        after = fixture.offsets()
        assert done["records"] == sum(after[partition].log_start - before[partition].log_start for partition in after) > 0
        assert after[ORDERING].log_start == 0
        assert not fixture.trim("--yes", code=0)["done"]  # nothing is left to free
        assert asyncio.run(allowed_of(broker.who("trimmer"), "notary.ordering")) == set()
        assert asyncio.run(allowed_of(broker.who("trimmer"), PAYLOAD, ("write", "add partitions", "alter settings"))) == set()
        assert asyncio.run(find_problems(broker.inside, "notary")) == []

        with NotaryProcess.start(config) as worker, CheckedClient(worker.url) as client:
            assert fixture.decide(client, requests) == decisions
            assert worker.stop() == 0
        with (
            NotaryProcess.start(config, "worker-2", settings={"SNAPSHOTS_URL": tmp_path / "second"}) as worker,
            CheckedClient(worker.url) as client,
        ):
            assert "restored from a snapshot" in worker.stderr()
            assert fixture.decide(client, requests) == decisions
            (double,) = fixture.decide(client, [spend(coin)])
            assert double["outcome"] == "rejected"
            fixture.decide(client, [spend()])
            assert worker.stop() == 0
        assert fixture.run("retire", "worker-1") == 0  # the owner's commands read no payload

        ends = {partition: offsets.log_end for partition, offsets in fixture.offsets().items()}
        with (tmp_path / "worker-3").open("w+") as stderr:
            new = serve(config, "worker-3", "127.0.0.1:0", stderr=stderr)
            assert new.wait(EXIT_S_MAX) == 2
            new.communicate()
            stderr.seek(0)
            assert "move this index away and restore a snapshot" in stderr.read()
        assert {partition: offsets.log_end for partition, offsets in fixture.offsets().items()} == ends, "a hole was filled"
