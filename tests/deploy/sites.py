"""The parts of three rendered sites on this machine."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.centres import Centres
from loadtest.rig import generate, signing
from tests.clients.party import Party
from tests.deploy.installed import Installed

NAME = signing.NOTARY
SITES = ("london", "paris", "zurich")
CLIENTS = 4
"""The number of the centre without a site: the clients run there, so that they see every site fail."""
COMPILES_LESS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of a Java that starts sooner, and is slower later."""
PARTY = Party(NAME, signing.PARTY, generate.party_key())


def sites_text(java_options: Sequence[str] = COMPILES_LESS, partitions: int = 3) -> str:
    """Returns a sites file without its folders: a controller, a broker and a worker in each of three centres."""
    return f"""
[notary]
name = "{NAME}"
origin = "notary.example/london"
payload_partitions = {partitions}

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
    """Three sites with this delay between them, each way; all is started as in deploy/sites/README.md, and stopped in order at the end."""
    with Centres(CLIENTS, delay_ms=delay_ms) as centres:
        made = Installed.install(directory, centres, sites_text(java_options), tls=tls)
        try:
            made.begin(PARTY)
            yield made
            made.stop()
        finally:
            made.end()


def urls(made: Installed) -> list[str]:
    """Returns the addresses at which workers accept submissions, in the order of the sites."""
    return [f"http{'s' if made.sites.tls else ''}://{worker.host}:{made.sites.ports.worker}" for worker in made.sites.workers]
