"""Rehearses the certificates of all brokers and controllers, which end together because they were issued together."""

import datetime
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import pytest

from tests.checkers import indexes
from tests.checkers.history import History
from tests.checkers.violation import describe
from tests.clients.http import Http
from tests.clients.load import Client, Load
from tests.deploy.installed import OPERATOR, Installed, done
from tests.deploy.operator_shell import Operator
from tests.deploy.sites import PARTY, installed_sites, urls
from tests.deploy.test_operations import BackgroundLoad, remains, same_height
from tests.deploy.test_sites_under_load import wrong
from tests.kafka.workers import connect_from
from tests.rehearsals.drill import Measured, Verifier, decide_again, outage_s
from tests.rehearsals.registry import Rehearsal
from tests.rehearsals.runbook import RUNBOOK, pages
from tests.spark.archived import archive

LIVES_S = 90
"""The time for which the certificates are valid: longer than all servers take to read them."""
DAY = datetime.timedelta(days=1)


class SitesLoad(Load):
    """A load that closes its connections at its end, in the event loop that made them."""

    def __init__(self, http: Http, history: History, urls: list[str]) -> None:
        super().__init__(Client(http, history), PARTY, urls, seed=1, clients=12)
        self._http = http

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await super().__aexit__(kind, error, trace)
        await self._http.__aexit__(kind, error, trace)


def end_soon(made: Installed) -> float:
    """Give all brokers and controllers certificates that end soon, which they read while they run; returns the time of the end."""
    ends = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(seconds=LIVES_S)
    ports, config = made.sites.ports, made.directory / "config"
    servers = [(f"broker-{node.id}", node, "broker", "server", ports.broker) for node in made.sites.brokers]
    servers += [(f"controller-{node.id}", node, "controller", "controller", ports.controller) for node in made.sites.controllers]
    issued = {each.name: each for each in made.sites.certificates}
    for name, node, *_ in servers:
        url = issued[name].crl_url
        made.authority.issue(name, hosts=[node.host], server=True, crl_url=url, days=1, valid_from=ends - DAY)
    for node in made.sites.brokers:
        made.copy_certificates(node.host)
    with ThreadPoolExecutor(3) as threads:  # each command starts a Java
        ran = [
            threads.submit(
                made.run,
                node.host,
                *(str(made.directory / "kafka" / "bin" / "kafka-configs.sh"), f"--bootstrap-{kind}", f"{node.host}:{port}"),
                *("--command-config", str(config / "broker-client.properties")),
                *("--entity-type", "brokers", "--entity-name", str(node.id), "--alter", "--add-config"),
                f"listener.name.{role}.ssl.keystore.location={config}/tls/{name}/keystore.pem",
            )
            for name, node, role, kind, port in servers
        ]
    for each in ran:
        done(each.result())
    return ends.timestamp()


@pytest.mark.rehearsal("the brokers' certificates expired")
def test_the_certificates_of_all_servers_expire(
    tmp_path: Path, rehearsal: Rehearsal, verifier: Verifier, keep: Callable[[Measured], None]
) -> None:
    """The certificates of all brokers and controllers end: a worker that connects anew is rejected, until they are renewed."""
    page, history = pages(RUNBOOK.read_text())[rehearsal.page], History()
    signs = "the log cannot be reached yet", "certificate has expired"
    for quoted in signs:
        assert page.quotes(quoted), quoted
    with installed_sites(tmp_path, 0) as made:
        words = {"ssh broker-$id": "ssh 10.77.$id.1", " broker-$id:": " 10.77.$id.1:", "/etc/notary": str(tmp_path / "config")}
        operator, trust = Operator(made, words), ssl.create_default_context(cafile=made.directory / "pki" / "ca.pem")
        last = made.sites.workers[-1].host
        http = Http(lambda host, port: connect_from(made.networks[host], host, port, trust), call_s_max=4.0)
        with BackgroundLoad(SitesLoad(http, history, urls(made)), "") as running:
            running.goes_on(50)
            ends_s = end_soon(made)
            running.goes_on(20)
            time.sleep(max(0.0, ends_s - time.time()))
            struck_s = time.monotonic()
            # Connections that are open stay open. A worker that is started again is the first to notice.
            operator.run(f"ssh {last} systemctl restart notary-worker", running.well)
            (worker,) = [service for service in made.workers if service.host == last]
            while not all(sign in worker.out.read_text() for sign in signs):
                assert worker.process.poll() is None, worker.last_lines
                time.sleep(0.1)
            noticed_s = time.monotonic()
            running.goes_on(10)
            print(operator.run("\n".join(page.blocks[0]), running.well))
            while found := wrong(made):
                running.well()
                time.sleep(0.1)
            over_s = time.monotonic()
            print(f"noticed after {noticed_s - struck_s:.1f} s, over after {over_s - struck_s:.1f} s {found}")
            running.goes_on(50)
        height, places = same_height(made), {worker.name: worker.host for worker in made.sites.workers}
        made.stop("notary-worker.service")
        left = remains(made, history, places)
        violations = left.violations()
        assert not violations, describe(violations)
        assert {indexes.height(rows) for rows in left.indexes.values()} == {height}
        log, parties = archive(left.by_partition, tmp_path / "archived"), made.host(OPERATOR) / "config" / "keys" / "parties.json"
        print(decide_again(verifier, ("--archive", str(log)), parties, height))
    measured = Measured(
        rehearsal.name,
        page.title,
        rehearsal.loses,
        height,
        0,  # `violations` would have them
        noticed_s - struck_s,
        outage_s(history, struck_s, over_s),
        over_s - struck_s,
        len(page.blocks),
        (0,),
    )
    keep(measured)
