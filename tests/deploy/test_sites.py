"""Tests three rendered sites: mutual TLS, rights, rejected certificates, and lost disks of controllers."""

import asyncio
import datetime
import itertools
import json
import re
import shutil
import socket
import ssl
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from aiokafka.helpers import create_ssl_context

from deploy.namespace import inside, run_inside
from deploy.pki import Authority
from deploy.render.kafka import directory_id
from tests.checkers.history import History
from tests.clients.http import Http
from tests.clients.load import Client, until
from tests.clients.party import spend, state
from tests.deploy.forbidden import OPERATIONS, REFUSED, TOPIC_REFUSED, Who
from tests.deploy.installed import OPERATOR, Installed, done
from tests.deploy.sites import PARTY, urls
from tests.kafka.workers import connect_from
from tests.rights import needs_root

# aiokafka leaves a connection open if it is closed while it connects, and the garbage collector says so in a later test.
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.chaos,
    needs_root,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("revoked"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

EXISTS, DELETION_DISABLED = 36, 73
NO_ANSWER = -1


def enters(made: Installed, host: str, port: int, context: ssl.SSLContext) -> bool:
    """Returns whether a server answers a client with this certificate: with TLS 1.3 a rejection comes after the client's handshake."""
    which_versions = bytes([0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 255, 255])
    with inside(made.networks[host]):
        connection = socket.create_connection((host, port))
    try:
        with connection, context.wrap_socket(connection, server_hostname=host) as secured:
            secured.sendall(which_versions)
            return secured.recv(4) != b""
    except (ssl.SSLError, ConnectionError):
        return False


def listeners(made: Installed) -> list[tuple[str, int]]:
    """Returns the addresses of brokers and controllers."""
    ports = made.sites.ports
    return [(node.host, ports.broker) for node in made.sites.brokers] + [(node.host, ports.controller) for node in made.sites.controllers]


@pytest.fixture(scope="module")
def revoked(installed: Installed) -> ssl.SSLContext:
    """A certificate that all servers accepted before it was revoked; the list has reached them.

    Java reads a list at most every 30 seconds. The module's other tests run meanwhile.
    """
    installed.authority.issue("former", crl_url=installed.sites.certificates[0].crl_url)
    made = installed.context("former")
    assert all(enters(installed, host, port, made) for host, port in listeners(installed))
    assert installed.authority.revoke("former") == 1
    for host in installed.networks:
        installed.copy_certificates(host)
    return made


@pytest.fixture
async def client(installed: Installed) -> AsyncIterator[Client]:
    """A client that reaches every site."""
    trust = ssl.create_default_context(cafile=installed.directory / "pki" / "ca.pem")

    async def connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await connect_from(installed.networks[host], host, port, trust)

    async with Http(connect) as http:
        yield Client(http, History(), 10)


async def test_each_site_decides(installed: Installed, client: Client) -> None:
    """A worker of each site commits a transaction; the others repeat its decision, and reject a second spend."""
    for number, url in enumerate(urls(installed)):
        submission = PARTY.submission(spend(state("coin", number), content=url))
        (decision,) = await client.decide([url], submission)
        assert decision["outcome"] == "committed"
        for other in urls(installed):
            assert await client.decide([other], submission) == [decision]
            (refused,) = await client.decide([other], PARTY.submission(spend(state("coin", number), content=other + "again")))
            assert refused["reason"] == "input-conflict"


QUORUM_S = 90.0
"""After this time an election of the controllers counts as failed."""


def quorum(made: Installed, *words: str) -> str:
    """Returns the output of Kafka's tool for the controllers' quorum, run on the host of the first broker.

    While the controllers elect a leader the tool says so, and it is run again, as README.md says. A broker may go on sending it to the
    former leader, so the controllers are asked in turn with the brokers.
    """
    tool = str(made.directory / "kafka" / "bin" / "kafka-metadata-quorum.sh")
    client = str(made.directory / "config" / "broker-client.properties")
    controllers = ",".join([f"{node.host}:{made.sites.ports.controller}" for node in made.sites.controllers])
    until_s = time.monotonic() + QUORUM_S
    for asked in itertools.cycle([("--bootstrap-server", made.sites.bootstrap), ("--bootstrap-controller", controllers)]):
        ran = made.run(made.sites.brokers[0].host, tool, *asked, "--command-config", client, *words)
        if ran.returncode == 0 or time.monotonic() > until_s:
            break
        assert "NotLeaderOrFollowerException" in ran.stdout + ran.stderr or asked[0] == "--bootstrap-controller", ran
    done(ran)
    return ran.stdout


def voters(made: Installed) -> dict[int, str]:
    """Returns the directory id of each controller that has a vote."""
    (line,) = [line for line in quorum(made, "describe", "--status").splitlines() if line.startswith("CurrentVoters:")]
    return {voter["id"]: voter["directoryId"] for voter in json.loads(line.partition(":")[2])}


def test_the_quorum_is_dynamic(installed: Installed) -> None:
    """The three controllers are voters by their rendered directory ids, so that one can be replaced."""
    assert voters(installed) == {node.id: directory_id(installed.sites, node) for node in installed.sites.controllers}


NOBODY: set[str] = set()
RIGHTS = {
    "delete topic": NOBODY,
    "describe": {"worker-london-1", "spark", "archive", "operator", "broker-1"},
    "read": {"worker-london-1", "spark", "archive", "operator", "broker-1"},
    "write": {"worker-london-1", "operator", "broker-1"},
    "read settings": {"worker-london-1", "spark", "archive", "operator", "broker-1"},
    "create this topic": {"operator", "broker-1"},
}
"""The rights on the two topics, by principal. Everything else is for the servers themselves."""
PRINCIPALS = ("worker-london-1", "spark", "archive", "operator", "stranger", "broker-1")
HARMLESS = {"create this topic": {EXISTS}}
"""The answer to a principal with the right: the topic exists."""


async def test_each_principal_has_the_rights_of_the_table(installed: Installed) -> None:
    """Each principal tries each operation on both topics: those in the table succeed, all others are denied."""
    crl_url = installed.sites.certificates[0].crl_url
    installed.authority.issue("stranger", crl_url=crl_url)
    network = installed.networks[OPERATOR]
    wrong: list[str] = []
    tried = 0

    async def ask(name: str, topic: str) -> dict[str, set[int]]:
        who = Who(installed.sites.bootstrap, installed.context(name))
        return {operation: await work(who, topic) for operation, work in OPERATIONS.items()}

    async def ask_all(topic: str) -> list[dict[str, set[int]]]:
        return await asyncio.gather(*[ask(name, topic) for name in PRINCIPALS])  # most of the time is waiting

    for topic in installed.sites.topics:
        answers = await asyncio.to_thread(run_inside, network, partial(asyncio.run, ask_all(topic)))
        for name, of_name in zip(PRINCIPALS, answers, strict=True):
            for operation, answered in of_name.items():
                tried += 1
                allowed = name in RIGHTS.get(operation, {"broker-1"})
                said = answered - HARMLESS.get(operation, set()) if allowed else answered
                right = not said if allowed else said and said <= REFUSED | {DELETION_DISABLED}
                if not right:
                    wrong.append(
                        f"{name}: {operation} of {topic}: {'allowed' if allowed else 'forbidden'}, and the answer is {answered or 'done'}"
                    )
    assert not wrong, "\n".join(wrong)
    assert tried == 2 * len(PRINCIPALS) * len(OPERATIONS)


@pytest.mark.nightly
async def test_a_password_has_the_rights_of_its_user(installed: Installed) -> None:
    """A user with a password has the rights of the certificate of that name, and a worker reads the log so; a wrong one is rejected."""
    host, config = installed.sites.brokers[0].host, installed.directory / "config"
    for name in ("spark", "worker-london-1"):
        (installed.host(host) / "config" / "scram").write_text(f"SCRAM-SHA-512=password={name}-password\n")
        command = [
            *(str(installed.directory / "kafka" / "bin" / "kafka-configs.sh"), "--bootstrap-server", installed.sites.bootstrap),
            *("--command-config", str(config / "broker-client.properties"), "--alter", "--entity-type", "users", "--entity-name", name),
            *("--add-config-file", str(config / "scram")),
        ]
        done(await asyncio.to_thread(installed.run, host, *command))
    bootstrap, topic = installed.sites.bootstrap.replace(":9092", ":9094"), installed.sites.topics[0]
    trust = create_ssl_context(cafile=installed.directory / "pki" / "ca.pem")

    async def ask(user: str, password: str) -> list[set[int]]:
        who = Who(bootstrap, trust, user, password)
        return [await OPERATIONS[operation](who, topic) for operation in ("read", "write", "delete records")]

    async def there(user: str, password: str) -> list[set[int]]:
        return await asyncio.to_thread(run_inside, installed.networks[OPERATOR], lambda: asyncio.run(ask(user, password)))

    async def known() -> bool:
        return NO_ANSWER not in set().union(*(await there("spark", "spark-password")))

    await until(known)  # brokers learn of a new user one after the other
    assert await there("spark", "spark-password") == [set(), {TOPIC_REFUSED}, {TOPIC_REFUSED}]
    assert await there("spark", "another") == await there("nobody", "spark-password") == [{NO_ANSWER}] * 3
    password = installed.host(host) / "config" / "password"
    password.touch(mode=0o600)
    password.write_text("worker-london-1-password\n")
    settings = {
        "SECURITY_PROTOCOL": "SASL_SSL",
        "BOOTSTRAP": bootstrap,
        "SASL_USERNAME": "worker-london-1",
        "SASL_PASSWORD_FILE": str(config / "password"),
    }
    notary = str(installed.directory / "notary" / "bin" / "notary")
    variables = [f"NOTARY_LOG_{key}={value}" for key, value in settings.items()]
    command = ["env", *variables, notary, "log", "show", "--config", str(config / "notary.toml"), "--count", "1"]
    shown = await asyncio.to_thread(installed.run, host, *command)
    done(shown)
    assert "genesis" in shown.stdout


def test_servers_reject_foreign_certificates(installed: Installed, tmp_path: Path) -> None:
    """All servers reject a client without a certificate, with an expired one, and with one of another authority, and accept a valid one."""
    ca, crl_url = installed.directory / "pki" / "ca.pem", installed.sites.certificates[0].crl_url
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=20)
    installed.authority.issue("late", crl_url=crl_url, valid_from=then, days=10)
    # The broker rejects a certificate whose revocation list it cannot find.
    installed.authority.issue("unlisted", crl_url="file:///nowhere/crl.pem")
    foreign = Authority.create(tmp_path / "pki")
    foreign.issue("worker-london-1", crl_url=crl_url)
    refused = {
        "none": create_ssl_context(cafile=ca),
        "late": installed.context("late"),
        "unlisted": installed.context("unlisted"),
        "foreign": installed.context("worker-london-1", foreign.directory),
    }
    good = installed.context("worker-london-1")
    for host, port in listeners(installed):
        assert enters(installed, host, port, good)
        assert [name for name, made in refused.items() if enters(installed, host, port, made)] == []


def test_a_server_proves_who_it_is(installed: Installed, tmp_path: Path) -> None:
    """A client that trusts another authority, or that expects another host, does not connect to a broker."""
    host, port = listeners(installed)[0]
    foreign = Authority.create(tmp_path / "pki")
    with inside(installed.networks[host]):
        connection = socket.create_connection((host, port))
    other = create_ssl_context(cafile=foreign.directory / "ca.pem")
    with connection, pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        other.wrap_socket(connection, server_hostname=host)
    with inside(installed.networks[host]):
        connection = socket.create_connection((host, port))
    with connection, pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        installed.context("spark").wrap_socket(connection, server_hostname="10.77.9.1")


def test_a_revoked_certificate_stays_out(installed: Installed, revoked: ssl.SSLContext) -> None:
    """All servers reject a revoked certificate soon after the list has reached them, without a restart, and accept others."""
    good = installed.context("spark")
    for host, port in listeners(installed):
        while enters(installed, host, port, revoked):
            time.sleep(0.1)
        assert enters(installed, host, port, good)


@pytest.mark.nightly
async def test_two_controllers_disks_are_lost(installed: Installed, client: Client) -> None:
    """As in the runbook, The controllers have no quorum: on new disks they are the same voters, with the metadata of the third."""
    former = voters(installed)
    nodes = installed.sites.controllers
    for node in nodes:
        installed.kill(node.host, "kafka-controller.service")
    folders = [installed.host(node.host) / "data" / f"controller-{node.id}" for node in nodes]
    tools, config = installed.directory / "kafka" / "bin", installed.directory / "config"
    words = ["--cluster-id", installed.sites.kafka.cluster_id, "--config", str(config / "controller.properties")]
    for node, data in zip(nodes[:2], folders[:2], strict=True):
        shutil.rmtree(data)
        data.mkdir()
        done(
            await asyncio.to_thread(installed.run, node.host, str(tools / "kafka-storage.sh"), "format", *words, "--no-initial-controllers")
        )
        properties = data / "meta.properties"
        properties.write_text(re.sub(r"^directory\.id=.*$", f"directory.id={former[node.id]}", properties.read_text(), flags=re.MULTILINE))
        shutil.copytree(folders[2] / "__cluster_metadata-0", data / "__cluster_metadata-0")
    for node in nodes:
        installed.start(node.host, "kafka-controller.service")
    assert await asyncio.to_thread(voters, installed) == former
    assert await client.decide(urls(installed), PARTY.submission(spend(state("after the quorum is back"))))


@pytest.mark.nightly
async def test_a_controllers_disk_is_lost(installed: Installed, client: Client) -> None:
    """The other controllers go on; replaced as in README.md, it is a voter again under another directory id, with their metadata."""
    node, tools = installed.sites.controllers[-1], installed.directory / "kafka" / "bin"
    assert installed.kill(node.host, "kafka-controller.service")
    data, config = installed.host(node.host) / "data" / f"controller-{node.id}", installed.directory / "config"
    shutil.rmtree(data)
    data.mkdir()
    former = directory_id(installed.sites, node)
    await client.decide(urls(installed), PARTY.submission(spend(state("while a disk is away"))))
    words = ["--controller-id", str(node.id), "--controller-directory-id", former]
    await asyncio.to_thread(quorum, installed, "remove-controller", *words)
    assert node.id not in await asyncio.to_thread(voters, installed)
    with pytest.raises(AssertionError, match="AssertPathExists"):
        installed.start(node.host, "kafka-controller.service")
    words = ["--cluster-id", installed.sites.kafka.cluster_id, "--config", str(config / "controller.properties")]
    done(await asyncio.to_thread(installed.run, node.host, str(tools / "kafka-storage.sh"), "format", *words, "--no-initial-controllers"))
    installed.start(node.host, "kafka-controller.service")
    own = installed.host(node.host) / "config"
    (own / "both.properties").write_text((own / "controller.properties").read_text() + (own / "broker-client.properties").read_text())
    words = ["--bootstrap-server", installed.sites.bootstrap, "--command-config", str(config / "both.properties"), "add-controller"]
    while (added := await asyncio.to_thread(installed.run, node.host, str(tools / "kafka-metadata-quorum.sh"), *words)).returncode != 0:
        # It lags behind, or the others elect a leader.
        said = added.stdout + added.stderr
        assert any(why in said for why in ("behind", "Timeout", "NotLeaderOrFollower")), added
    assert (await asyncio.to_thread(voters, installed))[node.id] != former
