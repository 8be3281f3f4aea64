"""Three sites on this machine, as they were rendered: what they are made of, how they are set up, and how they stop."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.centres import Centres
from loadtest.bench import generate
from notary import parties
from tests.asking.party import Party
from tests.deploy.installed import OPERATOR, Installed, Service

NAME = generate.NOTARY
SITES = ("london", "paris", "zurich")
JAVA_STOPPED = 143
CLIENTS = 4
"""The centre that is nobody's site: clients are there, so that they see each site die."""
COMPILES_LESS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of a Java that starts sooner, and is slower later."""
PARTY = Party(NAME, generate.PARTY, generate.party_key())


def sites_text(java_options: Sequence[str] = COMPILES_LESS) -> str:
    """A sites file: a controller, a broker and a worker in each of three centres."""
    return f"""
[notary]
name = "{NAME}"
origin = "notary.example/london"
payload_partitions = 3

[ports]
scram = 9094

[kafka]
cluster_id = "Qk1vZHJsS2VhX2VtcGxlMQ"
broker_heap_mib = 256
controller_heap_mib = 128
java_options = {json.dumps(list(java_options))}
""" + "".join(
        f"""
[[site]]
name = "{name}"
controllers = [{{ id = {100 + number}, host = "10.77.{number}.1" }}]
brokers = [{{ id = {number}, host = "10.77.{number}.1" }}]
workers = [{{ name = "{name}-1", host = "10.77.{number}.1" }}]
"""
        for number, name in enumerate(SITES, 1)
    )


@contextmanager
def installed_sites(
    directory: Path, delay_ms: float, java_options: Sequence[str] = COMPILES_LESS, *, tls: bool = True
) -> Iterator[Installed]:
    """Three sites, so many ms from each other each way; everything runs as in deploy/sites/README.md, and stops in order at the end."""
    with Centres(CLIENTS, delay_ms=delay_ms) as centres:
        made = Installed.install(directory, centres, sites_text(java_options), tls=tls)
        try:
            set_up(made)
            yield made
            stop(made)
        finally:
            made.end()


def set_up(made: Installed) -> None:
    """Format, start, give rights, make the notary, start its workers."""
    config = made.directory / "config"
    hosts = made.sites.bootstrap.replace(":9092", "").split(",")
    for host in hosts:
        made.make_folders(host)
        for script in ("format-controller.sh", "format-broker.sh"):
            done(made.run(host, script))
        made.start(host, "kafka-controller.service")
        made.start(host, "kafka-broker.service")
    if made.sites.tls:
        done(made.run(hosts[0], "acls.sh", str(config / "broker-client.properties")))
    done(made.run(OPERATOR, "init.sh", str(config / "keys")))
    keys = made.host(OPERATOR) / "config" / "keys"
    assert parties.add(keys / "parties.json", PARTY.name, PARTY.public_pem, "the test's party")
    for host in hosts:
        for name in ("notary-key.pem", "notary-keys.json", "parties.json"):
            target = made.host(host) / "config" / "keys" / name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes((keys / name).read_bytes())
            target.chmod(0o600)
        made.start(host, "notary-worker.service")
    for service in workers(made):
        while "ready at" not in service.out.read_text():
            assert service.process.poll() is None, service.said
            time.sleep(0.1)


def stop(made: Installed) -> None:
    """Workers first, then brokers, then controllers: each hears SIGTERM and ends as its unit calls success."""
    for kind, code in (("notary-worker", 0), ("kafka-broker", JAVA_STOPPED), ("kafka-controller", JAVA_STOPPED)):
        services = [service for service in made.services if service.name.startswith(kind)]
        for service in services:
            assert service.process.poll() is None, service.said
            service.process.send_signal(signal.SIGTERM)
        for service in services:
            assert service.process.wait() == code, service.said


def done(run: subprocess.CompletedProcess[str]) -> None:
    """Fails with its output when the command failed."""
    assert run.returncode == 0, f"{run.args}\n{run.stdout}\n{run.stderr}"


def workers(made: Installed) -> list[Service]:
    """The workers' processes."""
    return [service for service in made.services if service.name == "notary-worker.service"]


def urls(made: Installed) -> list[str]:
    """The addresses at which workers take submissions, in the order of the sites."""
    return [f"http{'s' if made.sites.tls else ''}://{worker.host}:{made.sites.ports.worker}" for worker in made.sites.workers]
