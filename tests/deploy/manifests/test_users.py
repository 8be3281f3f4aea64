"""Tests that the manifests' rights are sufficient and minimal, on a real broker with their topics and users and with TLS."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.protocol.admin import CreateAclsRequest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families

from deploy.local import Cluster
from deploy.local.ports import free_ports
from deploy.local.state import write_state
from deploy.manifests import KUBERNETES, MIRROR, Manifest, Tools, render
from deploy.manifests.render import documents
from deploy.pki import Authority
from notary import cli
from ordering.connection import KafkaSecurity, client_settings
from ordering.kafka import KafkaLog
from ordering.topics import topic_names
from tests.deploy.forbidden import Who, allowed_of
from tests.deploy.installed import make_kafka
from tests.deploy.scraped import scraped
from tests.deploy.test_manifests import settings_of
from tests.kafka.mirrors import Mirror
from tests.notary.cli.written import append, entry, register, signing_key
from tests.spark.conftest import settings_folder

pytestmark = [pytest.mark.go, pytest.mark.kafka, pytest.mark.timeout(600)]

ORDERING, PAYLOAD = topic_names("notary")
ALLOW, LITERAL = 3, 3
RESOURCES = {"topic": 2, "cluster": 4}
OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Alter": 7, "Describe": 8, "ClusterAction": 9, "DescribeConfigs": 10, "AlterConfigs": 11}
"""The operations that the manifests use, by their numbers in Kafka's protocol."""
EXPIRY = 'notary_broker_certificate_expiry_seconds{broker="1"} '


class Guarded:
    """A broker that accepts clients with a certificate, with the rights in the manifests."""

    def __init__(self, folder: Path, inside: str, outside: str) -> None:
        self.folder = folder
        self.inside = inside
        """The address for the operator of Kafka, who has all rights."""
        self.outside = outside
        self.metrics = ""
        """The worker's metrics after it has decided."""

    def security(self, user: str) -> KafkaSecurity:
        """Returns the settings with which a user connects."""
        ca, certificate, key = (str(self.folder / name) for name in ("ca.crt", f"{user}.crt", f"{user}.key"))
        return KafkaSecurity(protocol="SSL", ca_file=ca, cert_file=certificate, key_file=key)

    def who(self, user: str) -> Who:
        """Returns a user, for the operations that may be denied to it."""
        return Who(self.outside, client_settings(self.outside, "test", self.security(user))["ssl_context"], brokers=(1,))

    @asynccontextmanager
    async def admin(self, user: str) -> AsyncIterator[AIOKafkaAdminClient]:
        """An administration client of a user; an empty name is the operator."""
        client = AIOKafkaAdminClient(
            **client_settings(self.outside if user else self.inside, "test", self.security(user) if user else None)
        )
        await client.start()
        try:
            yield client
        finally:
            await client.close()

    async def make(self, manifests: list[Manifest]) -> None:
        """Create topics and users as in the manifests."""
        async with self.admin("") as client:
            for topic in (each for each in manifests if each["kind"] == "KafkaTopic"):
                spec, name = topic["spec"], topic["metadata"]["name"]
                config = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in spec["config"].items()}
                made = await client.create_topics([NewTopic(name, spec["partitions"], spec["replicas"], topic_configs=config)])
                assert [error[1] for error in made.topic_errors] == [0]
            for user in (each for each in manifests if each["kind"] == "KafkaUser"):
                # Strimzi's name for the user of a certificate.
                await grant(client, f"User:CN={user['metadata']['name']}", user["spec"]["authorization"]["acls"])


async def grant(client: AIOKafkaAdminClient, principal: str, acls: list[dict[str, Any]]) -> None:
    """Give a principal the rights in the ACLs of a KafkaUser."""
    for acl in acls:
        resource = acl["resource"]
        for operation in acl["operations"]:
            name = resource.get("name", "kafka-cluster")
            request = CreateAclsRequest(RESOURCES[resource["type"]], name, LITERAL, principal, "*", OPERATIONS[operation], ALLOW)
            answer = await client._send_request(request)
            assert [code for code, _ in answer.creation_responses] == [0]


@contextmanager
def guarded(folder: Path, users: list[str]) -> Iterator[Guarded]:
    """One broker for the duration of the with block."""
    _certificates(folder, users)
    cluster = Cluster.create(folder / "cluster", 1)
    (port,) = free_ports(1)
    state = cluster.state
    host, inside, controller = state.brokers[0].host, state.brokers[0].port, state.brokers[0].controller_port
    overrides = {
        "listeners": f"BROKER://{host}:{inside},CONTROLLER://{host}:{controller},TLS://127.0.0.1:{port}",
        "advertised.listeners": f"BROKER://{host}:{inside},TLS://127.0.0.1:{port}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL",
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": str(folder / "broker.pem"),
        "listener.name.tls.ssl.truststore.type": "PEM",
        "listener.name.tls.ssl.truststore.location": str(folder / "ca.crt"),
        "listener.name.tls.ssl.client.auth": "required",
        # Strimzi's settings for `authorization: simple`.
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    write_state(cluster.directory, replace(state, settings=replace(state.settings, overrides=overrides)))
    with cluster:
        yield Guarded(folder, f"{host}:{inside}", f"127.0.0.1:{port}")


def _certificates(folder: Path, users: list[str]) -> None:
    """Create an authority, and certificates for the broker and for each user, with the names that Strimzi gives the files."""
    authority = Authority.create(folder / "pki")
    shutil.copy(folder / "pki" / "ca.pem", folder / "ca.crt")
    for user in ["broker", *users]:
        authority.issue(user, hosts=["127.0.0.1"], server=user == "broker")
        for name, suffix in (("key", "key"), ("cert", "crt"), ("keystore", "pem")):
            shutil.copy2(folder / "pki" / user / f"{name}.pem", folder / f"{user}.{suffix}")


def script_of(manifests: list[Manifest], job: str) -> str:
    """Returns the shell script of a CronJob."""
    (found,) = (each for each in manifests if each["kind"] == "CronJob" and each["metadata"]["name"] == job)
    (container,) = found["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return str(container["args"][0])


@pytest.fixture(scope="module")
def broker(rendered: dict[str, list[Manifest]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker with the manifests' topics and users, on which the owner created a notary as in the README, and a worker decided."""
    manifests = rendered["one-zone"]
    users = [each["metadata"]["name"] for each in manifests if each["kind"] == "KafkaUser"] + ["mirror-source"]
    folder = tmp_path_factory.mktemp("guarded")
    with guarded(folder, users) as running:
        asyncio.run(running.make(manifests))
        # The worker's own settings, with this machine's paths; the owner's differ only in the certificate.
        log = tomllib.loads(settings_of(manifests)["notary.toml"])["log"]
        names = ("ca_file", "cert_file", "key_file")
        here = {user: {name: _here(folder, user, log[name]) for name in names} for user in ("owner", "worker")}
        lines = [f"security_protocol = {log['security_protocol']!r}", *(f"{name} = {file!r}" for name, file in here["owner"].items())]
        (folder / "log.toml").write_text("\n".join(lines))
        init = ["--kafka", running.outside, "--log-settings", str(folder / "log.toml"), "--partitions", "16"]
        settings = {f"LOG_{name.upper()}": file for name, file in here["worker"].items()}
        with scraped(folder / "notary", init, settings) as worker:
            worker.decide()
            while EXPIRY not in running.metrics:  # the worker looks at the certificate beside its other work
                running.metrics = worker.get("/metrics")
        yield running


def _here(folder: Path, user: str, file: str) -> str:
    """Returns the path in the test of a file in a user's pod."""
    return str(folder / Path(file).name.replace("user.", f"{user}."))


def test_what_is_allowed_is_enough(broker: Guarded) -> None:
    """The owner creates the notary; a worker finds the topics as they should be, and decides."""
    assert "notary_topic_problems 0.0" in broker.metrics
    assert "notary_positions 20.0" in broker.metrics


def test_the_end_of_the_brokers_certificate_is_shown(broker: Guarded) -> None:
    """A worker shows when the certificate ends that it got from the broker."""
    shown = float(broker.metrics.split(EXPIRY)[1].split()[0])
    assert shown == x509.load_pem_x509_certificate((broker.folder / "broker.crt").read_bytes()).not_valid_after_utc.timestamp()


def test_the_end_of_the_workers_own_certificate_is_shown(broker: Guarded) -> None:
    """A worker shows when the certificate ends that it shows to the broker."""
    shown = float(broker.metrics.split("\nnotary_log_certificate_expiry_seconds ")[1].split()[0])
    assert shown == x509.load_pem_x509_certificate((broker.folder / "worker.crt").read_bytes()).not_valid_after_utc.timestamp()


READS, WRITES = {"describe", "read"}, {"describe", "read", "read settings", "write"}


@pytest.mark.parametrize(("user", "allowed"), [("worker", WRITES), ("owner", WRITES), ("archive", READS), ("auditor", READS)])
async def test_nothing_else_is_allowed(broker: Guarded, user: str, allowed: set[str]) -> None:
    """No user deletes topics or records, creates topics or partitions, or alters settings; and some may not write."""
    for topic in (ORDERING, PAYLOAD):
        assert await allowed_of(broker.who(user), topic) == allowed


def place_of_jobs(manifests: list[Manifest], broker: Guarded, folder: Path) -> dict[str, str]:
    """Make the folders and the properties file of jobs in a folder; returns their environment."""
    text = settings_of(manifests)["kafka.properties"].replace("/etc/kafka-ca", str(broker.folder)).replace("/run/kafka", str(folder))
    (folder / "kafka.properties").write_text(text)
    (folder / "work").mkdir()
    return os.environ | {"SPARK_CONF_DIR": str(settings_folder(folder / "settings"))}


def run_script(script: str, broker: Guarded, user: str, folder: Path, kept: Path, environment: dict[str, str]) -> None:
    """Run the script of a job with this machine's paths, as a user of the broker; `kept` is the volume of the archive."""
    places = {
        "/etc/kafka-user/user": broker.folder / user,
        "/run/kafka": folder,
        "/etc/notary-parties": broker.folder / "notary",
        "/etc/notary": folder,
        "--work /work": f"--work {folder}/work",
        "/archive/": f"{kept}/",
        "log-kafka-bootstrap:9093": broker.outside,
        "exec python": f"exec {sys.executable}",
        "exec notary": f"exec {sys.executable} -m notary",
    }
    for ours, here in places.items():
        script = script.replace(ours, str(here))
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.nightly
def test_the_jobs_do_their_work(broker: Guarded, rendered: dict[str, list[Manifest]], tmp_path: Path) -> None:
    """The CronJobs' scripts archive the log, as the user `archive`, and verify it: 20 decisions, no violation.

    The job of the component `restore` restores it as its user, to brokers without the topics, and to those where Strimzi has made them.
    """
    manifests, kept = rendered["one-zone"], tmp_path / "kept"
    environment = place_of_jobs(manifests, broker, tmp_path)
    for job in ("archive", "verify"):
        run_script(script_of(manifests, job), broker, "archive", tmp_path, kept, environment)
    (report,) = (kept / "reports").glob("*/report.json")
    assert msgspec.json.decode(report.read_bytes())["decisions"] == 20
    user, job_of_restore = documents((KUBERNETES / "restore" / "restore.yaml").read_text())
    (script,) = job_of_restore["spec"]["template"]["spec"]["containers"][0]["args"]
    topics = [each for each in manifests if each["kind"] == "KafkaTopic"]
    for name, made in (("missing", []), ("empty", topics)):
        folder = tmp_path / name
        folder.mkdir()
        with guarded(folder, ["restore"]) as new:
            asyncio.run(new.make([*made, user]))
            run_script(script, new, "restore", folder, kept, place_of_jobs(manifests, new, folder))

            assert asyncio.run(ends(new.inside)) == asyncio.run(ends(broker.inside))


async def ends(address: str) -> dict[int, object]:
    """Returns the ends of all topic-partitions of a log with which a worker would start."""
    log = await KafkaLog.open(address, "notary")
    try:
        return dict(await log.offsets())
    finally:
        await log.close()


def test_replicas_move_to_another_broker(rendered: dict[str, list[Manifest]], tmp_path: Path) -> None:
    """The commands of README.md move all replicas, with no other rights than those of the user `reassign`.

    Here all clients are one user, `ANONYMOUS`, which is a super user until it has these rights. The brokers need ClusterAction besides.
    """
    user, _ = documents((KUBERNETES / "reassign.yaml").read_text())
    make_kafka(tmp_path / "kafka")
    (tmp_path / "client.properties").touch()
    blocks = re.findall(r"^```sh\n(.*?)^```", (KUBERNETES / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    commands = "".join(block for block in blocks if block.startswith("reassign"))
    guard = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    cluster = Cluster.create(tmp_path / "cluster", 2, overrides=guard | {"super.users": "User:ANONYMOUS"})

    async def prepare() -> None:
        brokers = Guarded(tmp_path, cluster.bootstrap, "")
        await brokers.make([each for each in rendered["one-zone"] if each["kind"] == "KafkaTopic"])
        async with brokers.admin("") as client:
            of_brokers = {"resource": {"type": "cluster"}, "operations": ["ClusterAction"]}
            await grant(client, "User:ANONYMOUS", [*user["spec"]["authorization"]["acls"], of_brokers])

    places = {
        "/opt/kafka": tmp_path / "kafka",
        "log-kafka-bootstrap:9093": cluster.bootstrap,
        "/tmp/client.properties": tmp_path / "client.properties",
        "cd /tmp": f"cd {tmp_path}",
        "--broker-list 1,2,3,4": "--broker-list 2",
    }
    for ours, here in places.items():
        assert ours in commands
        commands = commands.replace(ours, str(here))
    with cluster:
        asyncio.run(prepare())
        cluster.down(keep_data=True)
        write_state(cluster.directory, replace(cluster.state, settings=replace(cluster.state.settings, overrides=guard)))
        cluster.up()
        done = subprocess.run(["sh", "-euc", commands], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is completed" in done.stdout, done.stdout + done.stderr
    assert "uthorization" not in done.stdout + done.stderr, done.stdout + done.stderr
    (moved,) = [msgspec.json.decode(line) for line in (tmp_path / "after.json").read_bytes().splitlines()]
    assert [each["replicas"] for each in moved["partitions"]] == [[2]] * 17


def test_the_owner_salvages(broker: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    """The owner seals an entry whose content the log lost, which takes a record in the payload topic, and ends the salvage."""
    config = broker.folder / "notary" / "notary.toml"

    async def lose() -> None:
        log = await KafkaLog.open(broker.inside, "notary")
        try:
            await append(log, [register("worker-1", 9), entry(2, 1, b"lost")], signing_key(config.parent / "notary-key.pem"))
        finally:
            await log.close()

    asyncio.run(lose())
    capsys.readouterr()
    assert cli.main(["salvage", "--config", str(config), "--yes", "--json"]) == 0
    done = msgspec.json.decode(capsys.readouterr().out)
    assert (done["done"], done["seals"], done["decisions"]) == (True, True, 20)


def _config(broker: Guarded, user: str, folder: Path) -> Path:
    """Returns the configuration of the notary in that folder with the log of this broker, as that user."""
    security = broker.security(user)
    lines = [
        f'kind = "kafka"\nbootstrap = "{broker.outside}"\ntopic_prefix = "notary"\nsecurity_protocol = "SSL"',
        f'ca_file = "{security.ca_file}"\ncert_file = "{security.cert_file}"\nkey_file = "{security.key_file}"',
    ]
    file = folder / f"{user}.toml"
    file.write_text("\n".join([(folder / "notary.toml").read_text().partition("[log]")[0] + "[log]", *lines, ""]))
    return file


def test_a_mirror_is_made_and_failed_over(broker: Guarded, tools: Tools, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two sites have authorities of their own. The users of the mirror's manifests prepare it, fill it, and fail over to it.

    `notary mirror` serves its metrics, and those show when both sites last answered: the source is stopped before the failover.
    """
    manifests, of_source = render(tools, KUBERNETES / MIRROR), documents((KUBERNETES / MIRROR / "source.yaml").read_text())
    made = tmp_path / "notary"
    shutil.copytree(broker.folder / "notary", made)
    asyncio.run(broker.make(of_source))
    (port,) = free_ports(1)
    (tmp_path / "target").mkdir()
    with guarded(tmp_path / "target", [each["metadata"]["name"] for each in manifests if each["kind"] == "KafkaUser"]) as target:
        asyncio.run(target.make(manifests))
        users = ((broker, "mirror-source"), (target, "mirror"))
        source, mirror, failover = (_config(of, user, made) for of, user in (*users, (target, "failover")))
        assert cli.main(["failover", "--prepare", "--config", str(source), "--to-config", str(failover)]) == 0
        with Mirror(source, str(mirror), "--to-config", "--health-listen", f"127.0.0.1:{port}", "--json") as copying:
            while '"lag_records":0' not in copying.messages and "lag_records=0" not in copying.messages:
                copying.check_alive()
                time.sleep(0.2)
            shown = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
            copying.stop()
        values = {family.name: family.samples[0].value for family in text_string_to_metric_families(shown)}
        assert values["notary_mirror_lag_records"] == 0
        assert values["notary_mirror_copied"] >= 4  # genesis, activate, register, and an entry with its payload
        assert time.time() - values["notary_mirror_compared_seconds"] < 30
        certificates = [x509.load_pem_x509_certificate((of.folder / f"{user}.crt").read_bytes()) for of, user in users]
        assert values["notary_mirror_certificate_expiry_seconds"] == min(each.not_valid_after_utc.timestamp() for each in certificates)
        capfd.readouterr()
        assert cli.main(["failover", "--config", str(made / "notary.toml"), "--to-config", str(failover), "--yes", "--json"]) == 0
        assert msgspec.json.decode(capfd.readouterr().out)["decisions"] == 20
