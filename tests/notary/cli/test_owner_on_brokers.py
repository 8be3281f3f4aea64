"""The owner's commands on brokers: no worker needs a restart, and only the retired worker stops; also after a salvage and a trim."""

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.local import Cluster
from notary import cli
from notary.cli.trim import to_free
from notary.index import viewing
from notary.verify import trusted_keys, verify_receipt
from ordering.errors import ConfigurationError
from ordering.kafka import KafkaLog
from ordering.topics import free_records
from tests.notary.cli.written import append, entry, register, signing_key
from tests.notary.http.checked_client import JSON, CheckedClient
from tests.notary.party import Bank, spend
from tests.notary.process import EXIT_S_MAX, NotaryDirectory, NotaryProcess

pytestmark = pytest.mark.kafka
PREPARED = ("notary-key.pem.next", "notary-keys.json.next")


def run(directory: NotaryDirectory, *arguments: object) -> int:
    return cli.main([*map(str, arguments), "--config", str(directory.config)])


def test_a_log_in_use_changes(
    kafka_cluster: Cluster, kafka_prefix: str, tmp_path: Path, bank: Bank, notary_process: Callable[..., NotaryProcess]
) -> None:
    """Two workers on two machines continue while partitions are added and the key is rotated; a retired worker stops."""
    first = NotaryDirectory.create(tmp_path / "first", options=["--kafka", kafka_cluster.bootstrap, "--topic-prefix", kafka_prefix])
    first.register(bank)
    second = NotaryDirectory(Path(shutil.copytree(first.path, tmp_path / "second")))
    (second.path / "owner-key.pem").unlink()
    w1, w2 = notary_process(first.config, "w1"), notary_process(second.config, "w2")
    with CheckedClient(w1.url) as client:
        before = client.decide(bank, spend())
        key_before = client.verifier_key
    assert run(first, "partitions", 18) == 0
    assert run(second, "retire", "w2") == 2  # no owner's key there
    assert run(first, "key", "prepare") == 0
    for name in PREPARED:
        shutil.copy(first.path / name, second.path)

    done = threading.Event()
    decided: list[dict[str, Any]] = []

    def go_on() -> None:
        while not done.is_set():
            for worker in (w1, w2):
                answer = _submitted(worker, bank)
                assert answer.status_code in (200, 202, 503), answer.text
                if answer.status_code == 200:
                    decided.extend(answer.json()["decisions"])

    clients = threading.Thread(target=go_on)
    clients.start()
    try:
        assert run(first, "key", "rotate") == 0
        notaries: list[dict[str, Any]] = []
        while len(notaries) < 2 or any(len(notary["keys"]) < 2 for notary in notaries):
            notaries = [httpx.get(f"{worker.url}/v1/notary", trust_env=False).json() for worker in (w1, w2)]
    finally:
        done.set()
        clients.join()
    assert notaries[0]["verifier_key"] == notaries[1]["verifier_key"] != key_before
    known = trusted_keys(key_before, notaries[0])
    for decision in (*before, *decided):
        assert decision["outcome"] == "committed"
    for decision in decided:
        verify_receipt(decision["receipt"], decision, known)
    for worker in (w1, w2):
        assert worker.process.poll() is None
        _decides(worker, bank)
    assert run(first, "retire", "w2") == 0
    assert w2.process.wait(EXIT_S_MAX) == 2
    assert "the owner has retired worker 'w2'" in w2.stderr()
    _decides(w1, bank)
    assert run(first, "settle", "--index", first.path / "index" / "w1") == 0
    _decides(w1, bank)
    assert run(first, "log", "show", "--payload") == 0
    assert w1.stop() == 0


@pytest.mark.nightly
def test_commands_go_on_from_an_index(
    kafka_cluster: Cluster,
    kafka_prefix: str,
    tmp_path: Path,
    bank: Bank,
    notary_process: Callable[..., NotaryProcess],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After a salvage and a trim each command refuses to begin at the log's start, and goes on from the index of a running worker."""
    directory = NotaryDirectory.create(tmp_path / "notary", options=["--kafka", kafka_cluster.bootstrap, "--topic-prefix", kafka_prefix])
    directory.register(bank)
    worker = notary_process(directory.config, "w1")
    with CheckedClient(worker.url) as client:
        for _ in range(20):
            client.decide(bank, spend())
    assert worker.stop() == 0
    asyncio.run(_write_hole(kafka_cluster.bootstrap, kafka_prefix, directory))
    index = directory.path / "index" / "w1"
    assert run(directory, "salvage", "--index", index, "--yes") == 0
    worker = notary_process(directory.config, "w1")
    with CheckedClient(worker.url) as client:
        client.decide(bank, spend())
    assert asyncio.run(_free(kafka_cluster.bootstrap, kafka_prefix, index))

    for words in (("activate", 2), ("retire", "w9"), ("partitions", 18), ("key", "rotate")):
        capsys.readouterr()
        assert run(directory, *words) == 2
        assert "start from a worker's index, or a restored snapshot, with --index DIR" in capsys.readouterr().err
        code = run(directory, *words, "--index", index)
        printed = capsys.readouterr()
        if words[0] == "activate":  # there is no third version yet: the command has read that the second is active
            assert (code, "version 2 is active already" in printed.err) == (2, True), printed.err
        else:
            assert (code, "took effect" in printed.out) == (0, True), printed.err
    _decides(worker, bank)
    assert worker.stop() == 0


async def _write_hole(bootstrap: str, prefix: str, directory: NotaryDirectory) -> None:
    """Append an entry of the incarnation after the present one, whose content the log does not have."""
    log = await KafkaLog.open(bootstrap, prefix)
    try:
        await append(log, [register("w9", 9), entry(2, 1, b"lost")], signing_key(directory.path / "notary-key.pem"))
    finally:
        await log.close()


async def _free(bootstrap: str, prefix: str, index: Path) -> int:
    """Free the payloads that a reader with this index does not need (R11, trim). Returns the number of records that were freed."""
    with viewing(index) as view:
        state = view.joiner_state()
    unneeded = to_free([state], dict.fromkeys(state.marks, 0))
    log = await KafkaLog.open(bootstrap, prefix)
    await log.close()
    with pytest.raises(ConfigurationError, match=f"is another one than the log's: it has the id {log.payload_topic_id}"):
        await free_records(bootstrap, prefix, "the id of this name's topic in another cluster", unneeded)
    assert await free_records(bootstrap, prefix, log.payload_topic_id, unneeded) == unneeded  # the call before has freed nothing
    return sum(unneeded.values())


def _submitted(worker: NotaryProcess, bank: Bank) -> httpx.Response:
    """Submit one request. Returns the answer."""
    return httpx.post(f"{worker.url}/v1/submissions", content=bank.body(spend()), headers=JSON, trust_env=False, timeout=30)


def _decides(worker: NotaryProcess, bank: Bank) -> None:
    """Wait until a submission is decided, which may take until the worker has a new incarnation."""
    status = 503
    while status == 503:
        answer = _submitted(worker, bank)
        status = answer.status_code
    assert answer.json()["decisions"][0]["outcome"] == "committed"
