"""Tests `docs/operations.md`: runs every command of it, in order, on three sites that are under load all the time.

If the page has commands that undo a change (blocks marked `back`), the block before them is run, undone, and run once more.

No request may fail. A client of the project may go on to the next worker, as its documentation says, for two reasons only: the worker
answered `not-ready` (it starts, it stops, or it compares its log again), or nothing listened there (it is restarted). Any other result of
an attempt is a failure here: a connection that breaks during a request, a 202, `overloaded`, a timeout, any other status.
"""

import asyncio
import re
import shutil
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPSConnection
from typing import Generic, Self, TypeVar

import msgspec
import pytest
from cryptography import x509

from deploy.centres import Centres
from deploy.namespace import inside, run_inside
from loadtest.rig import generate
from notary import keys
from notary.client import AsyncClient, RetryPolicy, Signer
from notary.client.transport import Reply, Transport
from notary.config import load as load_config
from notary.version import VERSION
from tests.checkers import indexes
from tests.checkers.history import Call, History, Submission
from tests.checkers.remains import Remains
from tests.checkers.violation import describe
from tests.clients.http import Http
from tests.clients.load import Client, Load
from tests.clients.party import Party
from tests.deploy.installed import OPERATOR, ROOT, Installed, make_program
from tests.deploy.operator_shell import Operator
from tests.deploy.sites import CLIENTS as EXTRA
from tests.deploy.sites import NAME, PARTY, sites_text, urls
from tests.kafka.reading_back import read_log_records, read_rows
from tests.rights import needs_root

pytestmark = [pytest.mark.nightly, needs_root, pytest.mark.timeout(1_800)]

PAGE = ROOT / "docs" / "operations.md"
SESSION_S = 9.0
"""Kafka's default for `broker.session.timeout.ms`, which the renderer does not change."""
BOUND_S = 2 * (SESSION_S + 2.0)
"""The failover bound: twice a broker's session timeout and two seconds."""
PARTITIONS = 16
CLIENTS = 4
SUBMISSIONS_OF_A_CLIENT = 10
NEXT_VERSION = "0.0.0+next"
NOT_READY, NOBODY_LISTENS, DECIDED = "not-ready", "nobody listens", "decided"

WORDS = {
    f"{kind}.{site}.example": f"10.77.{number}.1"
    for number, site in enumerate(("london", "paris", "zurich"), 1)
    for kind in ("kafka", "notary")
}
WORDS |= {"kafka2.london.example": "10.77.4.1", "notary2.london.example": "10.77.4.1"}
FOLDERS = {"/etc/notary": "config", "/var/lib/notary": "data", "/opt/kafka": "kafka", "/opt/notary": "notary"}
NEW_WORKER = "https://10.77.4.1:8080"
WITHOUT_STEPS = "a-mirror-in-another-cluster"
"""The runbook has its commands, and `tests/rehearsals/test_mirrors.py` runs them."""

_ITEM = re.compile(
    r"^```(?P<kind>sh|toml)(?P<back> back)?\n(?P<text>.*?)^```$|^\d+\. Do \[[^]]+\]\(#(?P<section>[a-z-]+)\)", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Step:
    """A block of commands (`sh`), lines of the sites file (`toml`), or another section to run at this point (`do`)."""

    kind: str
    text: str
    back: bool = False
    """True if it undoes the steps before it in its section."""


def read_page() -> dict[str, list[Step]]:
    """Returns the steps of each section, by its anchor, in the order of the page."""
    sections: dict[str, list[Step]] = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        title = section.partition("\n")[0]
        sections[re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")] = [
            Step("do", found["section"]) if found["section"] else Step(found["kind"], found["text"], found["back"] is not None)
            for found in _ITEM.finditer(section)
        ]
    return sections


def back_and_again(steps: list[Step]) -> Iterator[tuple[Step, bool]]:
    """Yields the steps of a section, with undone steps repeated; and whether a step is the last of those that undo.

    Undone are the block of commands before, and the lines of the sites file that it needs.
    """
    for number, step in enumerate(steps):
        ends_back = step.back and not any(following.back for following in steps[number + 1 : number + 2])
        yield step, ends_back
        if ends_back:
            first = last = max(at for at in range(number) if not steps[at].back)
            if steps[last - 1].kind == "toml" and last:
                first -= 1
            yield from ((again, False) for again in steps[first : last + 1])


@dataclass(frozen=True)
class Attempt:
    """One call of a client to one worker, and its result."""

    url: str
    result: str
    reason: str = ""
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"), compare=False)
    """The time at which it ended."""


class Recorded(Transport):
    """The client's own transport, which records every attempt and changes none."""

    def __init__(self, urls: list[str], trust: ssl.SSLContext, history: History, attempts: list[Attempt]) -> None:
        super().__init__(urls, RetryPolicy(), trust)
        self._history = history
        self._attempts = attempts
        self.asked = Submission(b"", (), ())

    async def _attempt(self, method: str, url: str, path: str, body: bytes | None, left_s: float, more: Mapping[str, str]) -> Reply:
        if body is None:  # the notary's keys, for the check of a receipt
            return await super()._attempt(method, url, path, body, left_s, more)
        submission = Submission(body, self.asked.requests, self.asked.ids)
        self._history.submissions.append(submission)
        sent_s = time.monotonic()
        try:
            reply = await super()._attempt(method, url, path, body, left_s, more)
        except Exception as problem:
            self._attempts.append(Attempt(url, NOBODY_LISTENS if str(problem).startswith("ConnectError") else str(problem)))
            self._history.calls.append(Call(submission, url, sent_s, time.monotonic(), 0, ()))
            raise
        decisions = msgspec.json.decode(reply.body)["decisions"] if reply.status in (200, 202) else ()
        self._history.calls.append(
            Call(submission, url, sent_s, time.monotonic(), reply.status, decisions, reply.body if decisions else None)
        )
        self._attempts.append(_attempt(url, reply))
        return reply


def _attempt(url: str, reply: Reply) -> Attempt:
    if reply.status == 200:
        return Attempt(url, DECIDED)
    if reply.status == 503 and (problem := msgspec.json.decode(reply.body))["type"] == "/problems/not-ready":
        return Attempt(url, NOT_READY, re.sub(r"\d+", "N", problem["detail"]))
    return Attempt(url, f"{reply.status}: {reply.body[:300]!r}")


class Steady(Load):
    """A load of the project's own clients: each makes a few submissions and is then replaced."""

    def __init__(self, urls: list[str], trust: ssl.SSLContext, clients: int) -> None:
        self.history = History()
        self.attempts: list[Attempt] = []
        self.longest_s = 0.0
        self._trust = trust
        self._signer = Signer(generate.party_key().sign)
        super().__init__(Client(Http(), self.history), PARTY, urls, seed=1, clients=clients)

    async def _keep_asking(self) -> None:
        while not self._stop:
            urls = self._random.sample(list(self._urls), len(self._urls))
            async with AsyncClient(urls, PARTY.name, self._signer, notary_name=NAME) as client:
                await client._transport.close()
                client._transport = recorded = Recorded(urls, self._trust, self.history, self.attempts)
                for _ in range(SUBMISSIONS_OF_A_CLIENT):
                    recorded.asked = self._next()
                    began_s = time.monotonic()
                    # A deadline that passes is an error of the client, which ends the load and fails the test.
                    await client.submit(recorded.asked.requests, deadline_s=BOUND_S, receipts=self._random.random() < 0.5)
                    self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                    self.decided += 1
                    await asyncio.sleep(0.1)
                    if self._stop:
                        break  # type: ignore[unreachable]  # it is set while this task waits


LoadT = TypeVar("LoadT", bound=Load)


class BackgroundLoad(Generic[LoadT]):
    """A load in a thread of its own, in a network of its own."""

    def __init__(self, load: LoadT, network: str) -> None:
        self.load = load
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(network,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def goes_on(self, more: int = 10) -> None:
        """Wait until that many more submissions are decided; raises the error that ended the load, if any."""
        goal = self.load.decided + more
        while self.load.decided < goal and self._thread.is_alive():
            time.sleep(0.05)
        self.well()

    def well(self) -> None:
        """Raises the error that ended the load, if any."""
        for problem in self._failed:
            raise problem

    def _run(self, network: str) -> None:
        async def ask() -> None:
            async with self.load:
                while not self._stop.is_set():
                    await self.load.until(1)

        try:
            run_inside(network, lambda: asyncio.run(ask()))
        except BaseException as problem:
            self._failed.append(problem)


@pytest.fixture(scope="module")
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Three sites, and one more machine in London."""
    with Centres(EXTRA, delay_ms=request.config.getoption("--chaos-delay-ms")) as centres:
        made = Installed.install(tmp_path_factory.mktemp("operations"), centres, sites_text(partitions=PARTITIONS))
        try:
            made.begin(PARTY)
            yield made
        finally:
            made.end()


def make_next_version(made: Installed) -> None:
    """Copy the program to a folder of its own, under another version."""
    folder = made.directory / "next"
    for package in ("ordering", "payload", "joiner", "notary"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "notary" / "version.py").write_text(f'VERSION = "{NEXT_VERSION}"\n')
    make_program(made.directory / "notary-2" / "bin" / "notary", f"PYTHONPATH={folder} exec {made.directory}/notary/bin/notary")


def get(made: Installed, host: str, path: str) -> str:
    """Returns the body of a worker's answer."""
    ports, trust = made.sites.ports, ssl.create_default_context(cafile=made.directory / "pki" / "ca.pem")
    asked = HTTPConnection(host, ports.health) if path == "/metrics" else HTTPSConnection(host, ports.worker, context=trust)
    with inside(made.networks[host]), closing(asked) as connection:
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def metric(made: Installed, host: str, name: str) -> float:
    """Returns the value of a metric without labels."""
    (line,) = [line for line in get(made, host, "/metrics").splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def hosts(made: Installed) -> list[str]:
    """Returns the hosts of the workers."""
    return [service.host for service in made.workers]


def same_height(made: Installed) -> int:
    """Wait until all workers have read everything; returns the number of decisions. No request may be in flight."""
    while True:
        heights = {metric(made, host, "notary_positions") for host in hosts(made)}
        if len(heights) == 1 and not any(metric(made, host, "notary_lag_records") for host in hosts(made)):
            return int(heights.pop())
        time.sleep(0.1)


class Checks:
    """The expected changes after each section of the page. `said` is the output of its commands."""

    def __init__(self, made: Installed, running: BackgroundLoad[Steady], urls: list[str]) -> None:
        self._made = made
        self._running = running
        self._urls = urls
        self._former: dict[str, object] = {}

    def before(self, section: str) -> None:
        made = self._made
        if section == "register-a-party":
            (made.directory / "bank-b.pub").write_bytes(Party(NAME, "O=Bank B,L=Paris,C=FR").public_pem)
        if section == "retire-a-worker":
            self._urls.remove(NEW_WORKER)
            self._running.goes_on(2 * CLIENTS * SUBMISSIONS_OF_A_CLIENT)  # clients that knew it are gone
        self._former = {
            "incarnations": [metric(made, host, "notary_incarnation") for host in hosts(made)],
            "keys": self._keys(),
            "stopped": Counter(service.name for service in made.stopped),
            "serial": serial(made, made.sites.brokers[0].host, made.sites.ports.broker),
        }

    def after(self, section: str, said: str) -> None:
        check: Callable[[str], None] | None = getattr(self, "_" + section.replace("-", "_"), None)
        assert check is not None, f"the page has a section {section}, and no check of this test says what it changes"
        check(said)

    def taken_back(self, section: str, said: str) -> None:
        """Check that the commands that undo a section's change left nothing of it. `said` is the output of the last of them."""
        made = self._made
        match section:
            case "register-a-party":
                self._parties(1)
            case "retire-a-worker":
                assert "10.77.4.1" in hosts(made)
                while metric(made, "10.77.4.1", "notary_positions") < metric(made, "10.77.1.1", "notary_positions"):
                    self._running.goes_on(1)
            case "add-a-broker":
                assert said.count("is completed") == 1 + PARTITIONS
                assert all(4 not in partition["replicas"] for partition in self._plan("before.json"))
            case "rolling-upgrade":
                assert f'version="{VERSION}"' in get(made, "10.77.1.1", "/metrics")
            case "renew-certificates":
                broker = made.sites.brokers[0]
                while serial(made, broker.host, made.sites.ports.broker) != self._former["serial"]:
                    time.sleep(0.1)
            case "rotate-the-notarys-key":
                assert not list((made.directory / "hosts").glob("*/config/keys/*.next"))
            case _:
                raise AssertionError(f"the page takes {section} back, and no check of this test says what is left of it")

    def _parties(self, count: int) -> None:
        while not all(f"parties={count}" in self._last_parties(service.out.read_text()) for service in self._made.workers):
            self._running.goes_on(1)

    @staticmethod
    def _last_parties(log: str) -> str:
        return [line for line in log.splitlines() if "parties read" in line][-1]

    def _plan(self, name: str) -> list[dict[str, list[int]]]:
        plan: dict[str, list[dict[str, list[int]]]] = msgspec.json.decode((self._made.directory / name).read_bytes())
        return plan["partitions"]

    def _restarted(self, unit: str) -> int:
        before = self._former["stopped"]
        assert isinstance(before, Counter)
        return Counter(service.name for service in self._made.stopped)[unit] - before[unit]

    def _keys(self) -> set[str]:
        return {msgspec.json.decode(get(self._made, host, "/v1/notary"))["verifier_key"] for host in hosts(self._made)}

    def _before_and_after_each_change(self, said: str) -> None:
        assert said.count("notary_ready 1.0") == 3, said
        assert "Partition:" not in said, said

    def _register_a_party(self, said: str) -> None:
        assert "registered O=Bank B,L=Paris,C=FR" in said
        self._parties(2)

    def _stop_a_site_and_start_it_again(self, said: str) -> None:
        assert [self._restarted(f"{unit}.service") for unit in ("notary-worker", "kafka-broker", "kafka-controller")] == [1, 1, 1]
        self._running.goes_on(2 * CLIENTS * SUBMISSIONS_OF_A_CLIENT)

    def _add_a_worker(self, said: str) -> None:
        assert sorted(hosts(self._made)) == [f"10.77.{number}.1" for number in range(1, 5)]
        self._urls.append(NEW_WORKER)
        while not any(attempt == Attempt(NEW_WORKER, DECIDED) for attempt in self._running.load.attempts):
            self._running.goes_on()

    def _retire_a_worker(self, said: str) -> None:
        assert "took effect" in said
        assert "10.77.4.1" not in hosts(self._made)

    def _add_a_broker(self, said: str) -> None:
        moved = self._plan("after.json")
        assert any(4 in partition["replicas"] for partition in moved)
        assert said.count("is completed") >= len(moved) == 1 + PARTITIONS

    def _rolling_restart_of_kafka(self, said: str) -> None:
        assert self._restarted("kafka-controller.service") == self._restarted("kafka-broker.service") == 3

    def _rolling_upgrade(self, said: str) -> None:
        assert NEXT_VERSION != VERSION
        for host in hosts(self._made):
            assert f'version="{NEXT_VERSION}"' in get(self._made, host, "/metrics")

    def _rolling_restart_of_the_workers(self, said: str) -> None:
        assert self._restarted("notary-worker.service") == 3

    def _renew_certificates(self, said: str) -> None:
        made = self._made
        assert self._restarted("kafka-broker.service") == self._restarted("kafka-controller.service") == 0
        servers = [(f"broker-{node.id}", node.host, made.sites.ports.broker) for node in made.sites.brokers]
        servers += [(f"controller-{node.id}", node.host, made.sites.ports.controller) for node in made.sites.controllers]
        for name, host, port in servers:
            while serial(made, host, port) != made.authority.certificate(name).serial_number:
                time.sleep(0.1)
            # Server certificates are renewed twice, because the first renewal is undone.
            assert len([each for each in made.authority.issued() if each.subject == made.authority.certificate(name).subject]) == 3

    def _rotate_the_notarys_key(self, said: str) -> None:
        assert "took effect" in said
        assert self._restarted("notary-worker.service") == 0
        while len(found := self._keys()) != 1 or found == self._former["keys"]:
            self._running.goes_on(1)

    def _more_payload_partitions(self, said: str) -> None:
        assert "took effect" in said
        self._running.goes_on(100)

    def _remove_a_broker(self, said: str) -> None:
        assert any(4 in partition["replicas"] for partition in self._plan("before.json"))
        assert said.count("is completed") >= len(self._plan("after.json")) > 1 + PARTITIONS
        known = self._made.run(
            self._made.sites.brokers[0].host, str(self._made.directory / "kafka" / "bin" / "kafka-broker-api-versions.sh"),
            "--bootstrap-server", self._made.sites.bootstrap,
            "--command-config", str(self._made.directory / "config" / "broker-client.properties"),
        )  # fmt: skip
        assert known.stdout.count("(id: ") == 3, known
        assert len(self._made.sites.brokers) == 3


def serial(made: Installed, host: str, port: int) -> int:
    """Returns the serial number of the certificate that a server presents."""
    with inside(made.networks[host]):
        connection = socket.create_connection((host, port))
    with connection, made.context("spark").wrap_socket(connection, server_hostname=host) as secured:
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def remains(made: Installed, history: History, worker_names: dict[str, str]) -> Remains:
    """Returns the remaining data, with the index of each worker that ever ran."""
    folder, pki = made.host(OPERATOR) / "config" / "keys", made.directory / "pki"
    files = {"ca_file": pki / "ca.pem", "cert_file": pki / "operator" / "cert.pem", "key_file": pki / "operator" / "key.pem"}
    config = load_config(folder / "notary.toml", {f"log.{name}": str(file) for name, file in files.items()})
    by_partition = run_inside(made.networks[OPERATOR], lambda: asyncio.run(read_log_records(config)))
    rows = {name: read_rows(made.host(host) / "data" / "worker" / "index" / name) for name, host in worker_names.items()}
    known = keys.present_history(config.key_files)
    return Remains([each.verifier_key for each in known], by_partition, rows, history)


def test_every_command_of_the_page_under_load(installed: Installed) -> None:
    """Under load, each change is made as the page says; no request fails or takes longer than a failover, and all indexes agree."""
    made = installed
    assert not list((made.directory / "rendered").rglob("*session.timeout*"))
    page = read_page()
    make_next_version(made)
    operator = Operator(made, WORDS | {word: str(made.directory / folder) for word, folder in FOLDERS.items()})
    preamble, *sections = page.items()
    shell = preamble[1][0].text
    reached = urls(made)
    load = Steady(reached, ssl.create_default_context(cafile=made.directory / "pki" / "ca.pem"), CLIENTS)
    done: set[str] = set()
    with BackgroundLoad(load, made.networks[OPERATOR]) as running:
        running.goes_on()
        checks = Checks(made, running, reached)

        def do(section: str) -> None:
            done.add(section)
            checks.before(section)
            began_s, attempts, decided, said = time.monotonic(), len(load.attempts), load.decided, ""
            assert page[section], f"no step is found in {section}"
            for step, back in back_and_again(page[section]):
                if step.kind == "do":
                    do(step.text)
                    checks.before(section)
                elif step.kind == "toml":
                    operator.edit(step.text)
                else:
                    wrote = operator.run(shell + step.text, running.well)
                    running.goes_on()
                    if back:
                        checks.taken_back(section, wrote)
                    said += wrote
            checks.after(section, said)
            results = Counter(attempt.result for attempt in load.attempts[attempts:])
            reasons = Counter(attempt.reason for attempt in load.attempts[attempts:] if attempt.reason)
            print(f"{section}: {time.monotonic() - began_s:.0f} s, {load.decided - decided} submissions, {dict(results)}, {dict(reasons)}")
            failed = [attempt for attempt in load.attempts[attempts:] if attempt.result not in {DECIDED, NOT_READY, NOBODY_LISTENS}]
            asked = [service for service in made.workers if any(f"//{service.host}:" in attempt.url for attempt in failed)]
            assert not failed, "\n".join([*map(str, failed), *(service.last_lines for service in asked)])

        for section, _ in sections:
            if section not in done | {WITHOUT_STEPS}:
                do(section)
        do(sections[0][0])
    running.well()
    print(f"{load.decided} submissions, the longest {load.longest_s:.2f} s; {Counter(attempt.result for attempt in load.attempts)}")
    assert load.longest_s <= BOUND_S
    # Each registered once, and those that ran during the key rotation once more: nothing else ended a worker's incarnation.
    begun = [
        service.out.read_text().count("sender registered")
        for service in [*made.stopped, *made.workers]
        if service.name == "notary-worker.service"
    ]
    assert begun == [1] * (len(begun) - 3) + [2] * 3
    height = same_height(made)
    places = {worker.name: worker.host for worker in made.sites.workers}
    made.stop("notary-worker.service")
    left = remains(made, load.history, places | {"london-2": "10.77.4.1"})
    found = left.violations()
    assert not found, describe(found)
    assert not left.replayed.passing()
    assert {indexes.height(left.indexes[name]) for name in places} == {height}
    assert any(records for partition, records in left.by_partition.items() if partition >= PARTITIONS), "nobody uses the new partitions"
    made.stop()
