"""Tests deploy/one-box: its compose file as compose reads it, and its broker with the file's own commands."""

import asyncio
import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from deploy.local import golang
from deploy.local.jars import cache_folder
from deploy.local.java import find_java
from deploy.local.ports import free_ports
from deploy.local.runtime import Runtime, prepare
from deploy.local.settings import jvm_flags
from deploy.render.__main__ import main
from notary import parties
from notary.config import load
from tests.checkers.history import History
from tests.clients.http import Http
from tests.clients.load import Client
from tests.clients.party import Party, spend, state
from tests.deploy.installed import ENVIRONMENT, NOT_READY, command_of, make_kafka, make_program, read_unit, refuse_exec_gain
from tests.deploy.sites import COMPILES_LESS

ONE_BOX = Path(__file__).parents[2] / "deploy" / "one-box"
JAVA_STOPPED = 143

pytestmark = pytest.mark.go


@pytest.fixture(scope="session")
def compose() -> Path:
    """A program that reads a file with Compose's reference library, which checks schema and consistency."""
    return golang.build(Path(__file__).with_name("compose"), ["."], cache_folder() / "compose") / "compose"


def read(compose: Path, file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([compose, str(file)], cwd=file.parent, capture_output=True, text=True, check=False)


@pytest.fixture
def model(compose: Path) -> dict[str, Any]:
    """Returns the file as Compose reads it, with all profiles."""
    ran = read(compose, ONE_BOX / "compose.yaml")
    assert ran.returncode == 0, ran.stderr
    made: dict[str, Any] = json.loads(ran.stdout)
    return made


def test_compose_file_conforms_and_isolates_the_log(model: dict[str, Any]) -> None:
    """The file conforms to the specification; the log's network has no way out, and ports are open to this machine only."""
    assert model["services"].keys() == {"kafka", "worker", "format", "init"}
    assert model["networks"]["log"]["internal"] is True
    for name, service in model["services"].items():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert {port["host_ip"] for port in service.get("ports", [])} <= {"127.0.0.1"}
        assert name == "worker" or service["networks"].keys() == {"log"}
        assert (name in ("format", "init")) == (service.get("profiles") == ["once"])
    # The image's own command formats an empty disk.
    assert model["services"]["kafka"]["command"] == ["/opt/kafka/bin/kafka-server-start.sh", "/etc/notary/kafka.properties"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("restart: unless-stopped", "restarts: unless-stopped"),
        ("internal: true", "internal: perhaps"),
        ("condition: service_healthy", "condition: healthy"),
        ("networks: [log, clients]", "networks: [log, customers]"),
        ("kafka: { condition", "kafca: { condition"),
        ("- index:/index", "- indexes:/index"),
        ("interval: 10s", "interval: 10 seconds"),
    ],
)
def test_a_wrong_compose_file_is_noticed(compose: Path, tmp_path: Path, before: str, after: str) -> None:
    """The file with one misspelling is rejected, so the test above can fail."""
    text = (ONE_BOX / "compose.yaml").read_text()
    assert before in text
    (tmp_path / "compose.yaml").write_text(text.replace(before, after))
    assert read(compose, tmp_path / "compose.yaml").returncode != 0


def test_broker_and_worker_start_again_after_a_reboot(model: dict[str, Any]) -> None:
    """With `on-failure` Docker would not start a container again when its daemon starts."""
    assert {model["services"][name]["restart"] for name in ("kafka", "worker")} == {"unless-stopped"}


def test_worker_environment_has_valid_settings_only(model: dict[str, Any], tmp_path: Path) -> None:
    """The worker's environment has valid settings only."""
    (tmp_path / "notary.toml").write_text('name = "n"\norigin = "o"\n')
    config = load(tmp_path / "notary.toml", {}, model["services"]["worker"]["environment"])
    assert (config.http.listen, config.http.health_listen) == ("0.0.0.0:8080", "0.0.0.0:8081")
    assert str(config.path(config.index.directory)) == "/index"


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_the_broker_starts(model: dict[str, Any], tmp_path: Path) -> None:
    """The broker, formatted and started by the file's own commands on other ports, serves a notary; without an id it is not formatted."""
    runtime = prepare()
    broker_port, controller_port = free_ports(2)
    text = (ONE_BOX / "kafka.properties").read_text()
    for before, after in (
        ("BROKER://:", "BROKER://127.0.0.1:"),
        ("CONTROLLER://:", "CONTROLLER://127.0.0.1:"),
        ("kafka:", "127.0.0.1:"),
        (":9092", f":{broker_port}"),
        (":9093", f":{controller_port}"),
        ("/var/lib/kafka/data", str(tmp_path)),
    ):
        assert before in text
        text = text.replace(before, after)
    (tmp_path / "kafka.properties").write_text(text)
    words = [word.replace("/etc/notary", str(tmp_path)) for word in model["services"]["format"]["entrypoint"]]
    assert words[0].endswith("/kafka-storage.sh")
    assert storage(runtime, words[1:]).returncode != 0
    assert not (tmp_path / "broker").exists()
    assert storage(runtime, [*words[1:], "T25lQm94RXhhbXBsZUlkMQ"]).returncode == 0
    with (tmp_path / "server.log").open("wb") as out:
        broker = subprocess.Popen(runtime.broker(tmp_path / "kafka.properties", 256), stdout=out, stderr=subprocess.STDOUT)
    try:
        flags = [word.replace("kafka:9092", f"127.0.0.1:{broker_port}") for word in model["services"]["init"]["command"]]
        flags[1] = str(tmp_path / "notary")
        command = [sys.executable, "-m", "notary", *flags]
        while (ran := subprocess.run(command, capture_output=True, text=True, check=False)).returncode != 0:
            assert broker.poll() is None, (tmp_path / "server.log").read_text()
            assert any(words in ran.stderr for words in NOT_READY), ran.stderr
            time.sleep(0.2)
        assert "the loss of a disk loses the log" in ran.stderr
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.wait()


def storage(runtime: Runtime, words: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run Kafka's storage tool."""
    flags = [*jvm_flags(256), *([f"-XX:SharedArchiveFile={runtime.archive}"] if runtime.archive else [])]
    command = [runtime.java.path, *flags, "-cp", runtime.classpath, "kafka.tools.StorageTool", *words]
    return subprocess.run(command, capture_output=True, check=False)


@pytest.mark.kafka
@pytest.mark.timeout(300)
async def test_the_units_of_one_machine(tmp_path: Path) -> None:
    """With the units' own commands, rendered and formatted, a worker decides, reads its files again on reload, and all end in order."""
    ports = dict(zip(("broker", "controller", "worker", "health"), free_ports(4), strict=True))
    config = tmp_path / "rendered" / "here" / "127.0.0.1"
    folders = {"config": config, "data": tmp_path / "data", "kafka": tmp_path / "kafka", "notary": tmp_path / "notary"}
    options = f"heap_mib = 256\njava_options = {json.dumps(COMPILES_LESS)}\n"
    text = (ONE_BOX / "one-box.toml").read_text().replace("heap_mib = 1024", options)
    lines = ["[folders]", *(f'{name} = "{folder}"' for name, folder in folders.items()), f'java = "{find_java().path}"']
    lines += ["[ports]", *(f"{name} = {port}" for name, port in ports.items())]
    (tmp_path / "one-box.toml").write_text(text + "\n" + "\n".join(lines) + "\n")
    assert main([str(tmp_path / "one-box.toml"), "--to", str(tmp_path / "rendered")]) == 0
    make_kafka(folders["kafka"])
    make_program(folders["notary"] / "bin" / "notary", f"exec {sys.executable} -m notary")
    shutil.copytree(tmp_path / "rendered" / "operator", config, dirs_exist_ok=True)
    for line in (config / "tmpfiles.conf").read_text().splitlines():
        Path(line.split()[1]).mkdir(parents=True)
    started: list[subprocess.Popen[bytes]] = []

    def start(unit: str) -> None:
        settings = read_unit(config / unit)
        with (tmp_path / f"{unit}.log").open("wb") as out:
            strict = refuse_exec_gain if settings.get("MemoryDenyWriteExecute") == ["yes"] else None
            environment = ENVIRONMENT | {"NOTARY_HTTP_ACCEPTOR_PROCESSES": "1"}
            process = subprocess.Popen(command_of(settings), env=environment, stdout=out, stderr=subprocess.STDOUT, preexec_fn=strict)
        started.append(process)

    try:
        formats = [[config / f"format-{role}.sh"] for role in ("controller", "broker")]
        await asyncio.gather(*[asyncio.to_thread(subprocess.run, each, check=True, capture_output=True) for each in formats])
        for role in ("controller", "broker"):
            start(f"kafka-{role}.service")
        init = [config / "init.sh", config / "keys"]
        while (ran := await asyncio.to_thread(subprocess.run, init, capture_output=True, text=True, check=False)).returncode != 0:
            assert any(words in ran.stderr for words in NOT_READY), ran.stderr
            assert [process.poll() for process in started] == [None, None]
            await asyncio.sleep(0.2)
        party = Party("O=Notary Service,L=London,C=GB")
        assert parties.add(config / "keys" / "parties.json", party.name, party.public_pem, "the test's party") == "added"
        start("notary-worker.service")
        async with Http() as http:
            client, url = Client(http, History(), 10), f"http://127.0.0.1:{ports['worker']}"
            (decision,) = await client.decide([url], party.submission(spend(state("coin"))))
        assert decision["outcome"] == "committed"
        (reload,) = read_unit(config / "notary-worker.service")["ExecReload"]
        await asyncio.to_thread(subprocess.run, shlex.split(reload.replace("$MAINPID", str(started[-1].pid))), check=True)
        while "SIGHUP: reading certificates" not in (tmp_path / "notary-worker.service.log").read_text():
            assert started[-1].poll() is None
            await asyncio.sleep(0.1)
        for process, code in zip(reversed(started), (0, JAVA_STOPPED, JAVA_STOPPED), strict=True):
            process.send_signal(signal.SIGTERM)
            assert process.wait() == code
    finally:
        for process in started:
            process.kill()
            process.wait()
        for log in tmp_path.glob("*.log"):
            print(f"--- {log.name}", log.read_text()[-2000:], sep="\n")
