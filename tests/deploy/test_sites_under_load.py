"""Tests three sites under a steady load: each in turn dies, or is isolated, and comes back. The time without answers is measured.

A short run has one failover. `make sites` runs all, at any distance, with and without TLS, and Spark decides the log again at the end.
The load (`loadtest.openloop`) runs in a fourth centre. It retries each submission with the same bytes until it is answered. It fails if an
answer contradicts another, a receipt does not verify, or a position was never returned.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from deploy.namespace import inside, run_inside
from loadtest.bench.loads import Case, closed_load, failed, run_load
from loadtest.rig.machine import cpu_seconds, family
from loadtest.rig.notaries import RunningNotary
from tests.deploy.installed import Installed
from tests.deploy.sites import CLIENTS, installed_sites, urls
from tests.rights import needs_root

pytestmark = [pytest.mark.kafka, pytest.mark.chaos, pytest.mark.nightly, needs_root, pytest.mark.timeout(3_600)]

ROOT = Path(__file__).parents[2]
SESSION_TIMEOUT_S = 9.0
"""The time after which Kafka gives a silent broker up (`broker.session.timeout.ms`; the rendered files do not change it)."""
SILENCE_S_MAX = 2 * (SESSION_TIMEOUT_S + 2)
HOLD_S = SESSION_TIMEOUT_S + 6
"""The duration of a fault: the others have taken over, and have worked for a while."""
CALM_S = 5.0
JAVA_OPTIONS = ("-XX:+UseG1GC",)
ATTEMPT_S = 2.0
"""The time for which a client waits for a worker before it tries the next one."""
DIES = "dies"
CUTS = {"is cut off": {}, "sends nothing": {"incoming": False}, "hears nothing": {"outgoing": False}}
T = TypeVar("T")


@dataclass
class Seen:
    """A fault, and its effect on clients."""

    site: str
    fault: str
    led_ordering: bool
    began_unix_s: float
    back_s: float = 0.0
    """Seconds from its end until all workers were ready and all replicas in sync."""
    silent_s: float = 0.0
    """The longest time in seconds without an answer, between its start and that of the next fault."""


@pytest.fixture(scope="module")
def sites(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Three sites. Those that are measured have a Java with the default compiler settings."""
    options = request.config.getoption
    if not options("--sites-rate"):
        yield request.getfixturevalue("installed")
        return
    directory = tmp_path_factory.mktemp("under-load")
    with installed_sites(directory, options("--chaos-delay-ms"), JAVA_OPTIONS, tls=not options("--sites-plain")) as made:
        yield made


def test_each_site_fails_under_load(
    sites: Installed, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No acknowledged decision is lost or contradicted, and no fault stops the answers for longer than two session timeouts of a broker."""
    options = request.config.getoption
    rate, measured = options("--sites-rate") or 200.0, bool(options("--sites-rate"))
    chosen = options("--sites-faults").split(",") if measured else [DIES]
    faults = [(number, fault) for number in (1, 2, 3) for fault in [DIES, *CUTS] if fault in chosen]
    if not measured:
        faults = [(leader(sites), DIES)]
    # The load's length includes this much time for a site to come back, and for a pause before the next fault.
    warm_up_s, back_s = (10.0, 60.0) if measured else (2.0, 25.0)
    monkeypatch.setenv("SSL_CERT_FILE", str(sites.directory / "pki" / "ca.pem"))
    closed = closed_loop(sites) if measured else {}
    figure = tmp_path / "figure.json"
    seconds = CALM_S + (len(faults) * (HOLD_S + back_s) or 30)
    load = start_load(sites, rate, warm_up_s, seconds, figure, tmp_path)
    seen: list[Seen] = []
    with load:
        try:
            while "the schedule begins" not in said(tmp_path):
                assert load.poll() is None, said(tmp_path)
                time.sleep(0.2)
            time.sleep(warm_up_s + CALM_S)
            before = costs(sites)
            for number, fault in faults:
                seen.append(bring(sites, number, fault, load))
                print_now(f"{seen[-1].site} {fault}: all was well again {seen[-1].back_s:.1f} s after its end")
                time.sleep(CALM_S)
            assert load.wait() == 0, said(tmp_path)
            after = costs(sites)
        finally:
            load.kill()
    returned = json.loads(figure.read_text())["figure"]
    silences(seen, returned)
    for each in seen:
        print_now(f"{each.site:8}{each.fault:15}{'led the ordering topic' if each.led_ordering else '':24}{each.silent_s:6.1f} s")
    if measured:
        # CPU is compared only between runs without faults: the counters of a site that died are lost.
        cpu = {} if faults else {kind: after[kind] - before[kind] for kind in before}
        result = {"delay_ms": options("--chaos-delay-ms"), "tls": not options("--sites-plain"), "closed_loop": closed, "cpu_s": cpu}
        result |= {"rate": rate, "seen": [asdict(each) for each in seen], "figure": returned | {"answered_by_tenth": None}}
        result |= {"spark": spark_says(sites, tmp_path / "verified")}
        print_now(json.dumps(returned["stages"]))
        with Path(options("--sites-out")).open("a") as out:
            print(json.dumps(result), file=out)
    assert returned["transactions_decided"] > 0
    assert [each for each in seen if each.silent_s > SILENCE_S_MAX] == []


def print_now(text: str) -> None:
    """Print a line for a person who waits (`-s`)."""
    print(f"sites: {text}", file=sys.stderr, flush=True)


def start_load(sites: Installed, rate: float, warm_up_s: float, seconds: float, figure: Path, folder: Path) -> "subprocess.Popen[bytes]":
    """Start a steady load, ten requests a submission, from the centre without a site."""
    words = {"rate": rate, "requests-per-submission": 10, "run-time": f"{seconds:g}s", "warm-up": warm_up_s, "attempt": ATTEMPT_S}
    words |= {"users": 200, "deadline": 60, "figure": figure, "host": ",".join(urls(sites))}
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest" / "locustfile.py"), "--headless"]
    command += [word for name, value in words.items() for word in (f"--{name}", str(value))]
    with (folder / "load.txt").open("wb") as out, inside(sites.centres.network(CLIENTS)):
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)


def said(folder: Path) -> str:
    """Returns the end of the load's output."""
    return (folder / "load.txt").read_text(errors="replace")[-4_000:]


def closed_loop(sites: Installed) -> dict[str, float]:
    """Measure the maximum rate of clients that submit again at once, ten requests a submission."""
    place = RunningNotary(urls(sites), {}, Path(), Path(), None, 3)
    warm, outcome = from_clients(
        sites, lambda: [run_load(closed_load(place, Case(10, 4), seconds, seed)) for seed, seconds in ((1, 8), (2, 10))]
    )
    assert not failed(warm)
    assert not failed(outcome)
    rate = outcome.requests / outcome.seconds
    return {"requests_per_s": round(rate), "latency_ms_p50": outcome.latency_ms_p50, "latency_ms_p99": outcome.latency_ms_p99}


def from_clients(sites: Installed, work: Callable[[], T]) -> T:
    """Call `work` in the network of the clients."""
    return run_inside(sites.centres.network(CLIENTS), work)


def bring(sites: Installed, number: int, fault: str, load: "subprocess.Popen[bytes]") -> Seen:
    """Cause a fault of a site and end it; returns when all workers are ready again and all replicas are in sync."""
    assert load.poll() is None, "the load ended before the faults did"
    seen = Seen(sites.sites.site[number - 1].name, fault, leader(sites) == number, time.time())
    if fault == DIES:
        host = sites.centres.host(number)
        died = sites.kill(host)
        time.sleep(HOLD_S)
        ended_s = time.time()
        for service in died:
            sites.start(host, service.name)
    else:
        cut = sites.centres.cut_off(number, **CUTS[fault])
        time.sleep(HOLD_S)
        ended_s = time.time()
        sites.centres.heal(cut)
    before: list[str] = []
    while found := wrong(sites):
        assert load.poll() is None, (
            f"the load ended before all was well again: {found}\n{[service.last_lines for service in sites.services]}"
        )
        firsts = [text.partition("\n")[0] for text in found]
        if firsts != before:
            print_now(f"  {time.time() - ended_s:5.1f} s: {'; '.join(firsts)}")
            before = firsts
        time.sleep(0.5)
    seen.back_s = time.time() - ended_s
    return seen


def silences(seen: list[Seen], returned: dict[str, Any]) -> None:
    """Record, for each fault, the longest time without an answer."""
    began_s, counts = returned["began_unix_s"], returned["answered_by_tenth"]
    ends = [*[each.began_unix_s for each in seen], began_s + len(counts) / 10][1:]
    for each, end_s in zip(seen, ends, strict=True):
        first, last = (int((at_s - began_s) * 10) for at_s in (each.began_unix_s, end_s))
        answered = [first - 1, *[tenth for tenth in range(first, last) if counts[tenth]], last]
        each.silent_s = max(after - before - 1 for before, after in pairwise(answered)) / 10


def wrong(sites: Installed) -> list[str]:
    """Returns a line for each worker that is not ready, and for each partition with a replica that is not in sync."""
    ports, hosts = sites.sites.ports, [worker.host for worker in sites.sites.workers]
    answers = from_clients(sites, lambda: {host: readiness(host, ports.health) for host in hosts})
    found = [f"worker on {host}: {answer}" for host, answer in answers.items() if answer]
    partitions = [(topic["topic"], partition) for topic in topics(sites) for partition in topic["partitions"]]
    return found + [f"{name}: in sync {partition['isr']}" for name, partition in partitions if len(partition["isr"]) < 3]


def readiness(host: str, port: int) -> str:
    """Returns an empty text if a worker is ready, otherwise its answer."""
    try:
        answer = httpx.get(f"http://{host}:{port}/readyz?verbose", timeout=1, trust_env=False)
    except httpx.TransportError as problem:
        return repr(problem)
    return "" if answer.status_code == 200 else answer.text.strip()


def leader(sites: Installed) -> int:
    """Returns the number of the site whose broker leads the ordering topic."""
    (topic,) = [topic for topic in topics(sites) if topic["topic"] == sites.sites.topics[0]]
    return int(topic["partitions"][0]["leader"])


def topics(sites: Installed) -> list[dict[str, Any]]:
    """Returns both topics, as a broker describes them; without in-sync replicas if no broker answers."""
    settings: dict[str, Any] = {"bootstrap_servers": sites.sites.bootstrap, "request_timeout_ms": 3_000}
    if sites.sites.tls:
        settings |= {"security_protocol": "SSL", "ssl_context": sites.context("spark")}

    async def describe() -> list[dict[str, Any]]:
        client = AIOKafkaAdminClient(**settings)
        try:
            await client.start()
            return list(await client.describe_topics(list(sites.sites.topics)))
        except (KafkaError, OSError, TimeoutError):
            return [{"topic": "", "partitions": [{"isr": []}]}]
        finally:
            await client.close()

    return from_clients(sites, lambda: asyncio.run(describe()))


def costs(sites: Installed) -> dict[str, float]:
    """Returns the CPU seconds so far of the running processes, by the kind of service."""
    kinds = {service.name for service in sites.services}
    found = {kind: [service.process.pid for service in sites.services if service.name == kind] for kind in kinds}
    return {kind.removesuffix(".service"): cpu_seconds(family(pids)) for kind, pids in found.items()}


def spark_says(sites: Installed, out: Path) -> dict[str, Any]:
    """Verify both topics with Spark, which decides everything again; fails on any violation."""
    properties = out.with_suffix(".properties")
    settings = {}
    if sites.sites.tls:
        pki = sites.directory / "pki"
        settings = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": pki / "ca.pem"}
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": pki / "spark" / "keystore.pem"}
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    keys = sites.host("operator") / "config" / "keys"
    words = ["--bootstrap", sites.sites.bootstrap, "--prefix", sites.sites.notary.topic_prefix, "--parties", keys / "parties.json"]
    words += ["--kafka-config", properties, "--out", out, "--master", "local[2]", "--memory", "2g"]
    here = sites.centres.host(CLIENTS)
    environment = os.environ | {"SPARK_LOCAL_IP": here}
    command = [sys.executable, "-m", "spark_join", "verify", *map(str, words)]
    done = from_clients(sites, lambda: subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False))
    assert done.returncode == 0, done.stdout + done.stderr
    print_now(f"Spark: {re.sub(chr(27) + '.*?m', '', done.stdout.strip().splitlines()[-1])}")
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return {name: value for name, value in report.items() if not isinstance(value, dict | list)}
