"""Rehearses the notary's key, stolen or lost, and a certificate that has expired."""

import asyncio
import datetime
import json
import os
import ssl
from functools import partial
from typing import Any

import pytest

from deploy.local.ports import free_ports
from tests.clients.load import Load
from tests.kafka.second_hand import Hand
from tests.kafka.test_workers import producer
from tests.kafka.workers import Worker
from tests.notary.certificates import Authority
from tests.rehearsals.drill import Drill

LIVES_S = 12
"""The time for which the certificate is valid: longer than a worker takes to start."""


@pytest.mark.rehearsal("the notary's key stolen")
async def test_a_thief_writes_with_the_notarys_key(drill: Drill) -> None:
    """A thief fences a worker again and again with the notary's key, until the key is rotated: his records count no more."""
    w1, w2 = await drill.start("w1", "w2")
    former = await drill.notary.verifier_key(w1)

    async def fenced() -> bool:
        return await drill.metric(w1, 'notary_incarnation_events_total{event="fenced"}') >= 2

    async with drill.load() as load, producer(drill.notary) as made:
        thief = await Hand.of(drill.notary, made, stolen_key=True)
        await load.until(50)
        drill.strikes()

        async def steal(far: int) -> None:
            incarnation = int(await drill.metric(w1, "notary_incarnation "))
            await thief.record(thief.entry(incarnation, 2**40 + far, b"nowhere", (os.urandom(32),)))

        before = await drill.metric(w1, "notary_incarnation ")
        await steal(0)
        await drill.until(lambda: _incarnation_after(drill, w1, before))
        await steal(1)
        await drill.anomaly(fenced, "notary_incarnation_events_total", "NotaryWorkersFenced")
        await drill.follow()

        async def rotated() -> bool:
            return all([await drill.notary.verifier_key(worker) != former for worker in (w1, w2)]) and await drill.ready()

        await drill.over(rotated, "GET /v1/notary", "/readyz")
        for far in range(2, 5):
            await steal(far)
        await load.until(50)
    for worker in (w1, w2):
        assert await drill.metric(worker, 'notary_log_anomalies_total{kind="unsigned"}') >= 3
    # Spark names both of his records that counted: they jumped over numbers of a worker's incarnation.
    await drill.verify(forged=True, violations=["sequence-gap"])


async def _incarnation_after(drill: Drill, worker: Worker, former: float) -> bool:
    return await drill.metric(worker, "notary_incarnation ") > former


@pytest.mark.rehearsal("the notary's key lost")
async def test_no_machine_has_the_notarys_key(drill: Drill) -> None:
    """The key file is gone on every machine, and so is every backup: the owner's key puts a new one in force."""
    w1, w2 = await drill.start("w1", "w2")
    former = await drill.notary.verifier_key(w1)
    async with drill.load() as load:
        await load.until(50)
        drill.strikes()
        (drill.notary.directory / "notary-key.pem").unlink()
        await w2.stop()
        w2 = drill.begin("w2")
        await drill.anomaly(lambda: w2.process.poll() is not None, "cannot read the notary's key")
        assert await w2.ended() == 2
        assert "cannot read the notary's key" in w2.messages
        printed = await drill.follow()
        assert former not in printed

        async def replaced() -> bool:
            return all([await drill.notary.verifier_key(each) != former for each in drill.workers.values()]) and await drill.ready()

        await drill.workers["w2"].ready()
        await drill.over(replaced, "GET /v1/notary", "/readyz")
        await load.until(50)
    shown = json.loads(await asyncio.to_thread(drill.shell, "notary key show --config notary.toml --json"))
    assert len(shown["keys"]) == 1
    drill.notary.lost_keys.append(former)
    await drill.verify(forged=True)


@pytest.mark.rehearsal("a certificate expired")
async def test_a_certificate_expires(drill: Drill) -> None:
    """The service's certificate expires while a worker serves: its clients go to another one until a renewed one is in its place."""
    folder, issuer = drill.notary.directory, Authority()
    soon = datetime.timedelta(seconds=LIVES_S)
    certificate, key = issuer.server(until=soon).put(folder, "server")
    health, port = free_ports(2)
    files: dict[str, Any] = {"http_tls_cert_file": str(certificate), "http_tls_key_file": str(key)}
    (w1,) = await drill.start("w1")
    w2 = await drill.notary.start("w2", http_health_listen=f"127.0.0.1:{health}", **files).ready()
    port, w2.url = int(w2.url.rpartition(":")[2]), f"http://127.0.0.1:{health}"
    trust = ssl.create_default_context(cadata=issuer.pem.decode())

    async def accepted() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        except ssl.SSLCertVerificationError as problem:
            drill.note(f"a client: {problem.verify_message}")
            return False
        writer.close()
        return True

    async def problem() -> bool:
        return await drill.metric(w2, "notary_tls_problem ") == 1

    async with Load(drill.notary.client, drill.notary.party, [w1.url], seed=1) as load:
        await load.until(20)
        assert await accepted()
        expires_s = await drill.metric(w2, "notary_tls_certificate_expiry_seconds ")
        await asyncio.sleep(max(0.0, expires_s - datetime.datetime.now(datetime.UTC).timestamp()))
        drill.strikes()
        await drill.anomaly(problem, "notary_tls_problem", "notary_tls_certificate_expiry_seconds", "NotaryCertificateNotRenewed")
        assert "and this machine's clock says" in w2.messages
        assert not await accepted()
        issuer.server().put(folder, "renewed")
        await drill.follow()
        await drill.over(accepted, "certificate read", "notary_tls_problem")
        await drill.until(partial(_is_zero, drill, w2))
        await load.until(20)
    drill.workers["w2"] = w2
    await drill.verify()


async def _is_zero(drill: Drill, worker: Worker) -> bool:
    return await drill.metric(worker, "notary_tls_problem ") == 0
