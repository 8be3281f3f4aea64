"""deploy/one-box: its compose file as compose itself reads it, and the broker in it as it would be started."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from deploy.local.java import find_java
from deploy.local.ports import free_ports
from deploy.local.runtime import Runtime, prepare
from notary.config import load

ONE_BOX = Path(__file__).parents[2] / "deploy" / "one-box"
HERE = Path(__file__).parent / "compose"

pytestmark = pytest.mark.go


@pytest.fixture(scope="session")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that reads a file with the library of those who define the format, which checks schema and consistency."""
    if shutil.which("go") is None:
        pytest.fail(
            "these tests need Go 1.25 or newer on the PATH (https://go.dev/dl), or leave them out with `-m 'not go'`", pytrace=False
        )
    program = tmp_path_factory.mktemp("compose") / "compose"
    command = ["go", "build", "-mod=readonly", "-buildvcs=false", "-o", str(program), "."]
    built = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert built.returncode == 0, f"the program does not build (the first time its modules are fetched):\n{built.stderr}"
    return program


def read(compose: Path, file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([compose, str(file)], cwd=file.parent, capture_output=True, text=True, check=False)


@pytest.fixture
def model(compose: Path) -> dict[str, Any]:
    """What the file means, with all profiles."""
    ran = read(compose, ONE_BOX / "compose.yaml")
    assert ran.returncode == 0, ran.stderr
    made: dict[str, Any] = json.loads(ran.stdout)
    return made


def test_compose_file(model: dict[str, Any]) -> None:
    """It conforms to the specification; the log's network has no way out, and ports are open to this machine alone."""
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
    """With one thing misspelt it is refused, so the test above can fail."""
    text = (ONE_BOX / "compose.yaml").read_text()
    assert before in text
    (tmp_path / "compose.yaml").write_text(text.replace(before, after))
    assert read(compose, tmp_path / "compose.yaml").returncode != 0


def test_worker_settings(model: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The worker's environment names settings that there are."""
    (tmp_path / "notary.toml").write_text('name = "n"\norigin = "o"\n')
    config = load(tmp_path / "notary.toml", {}, model["services"]["worker"]["environment"])
    assert (config.http.listen, config.http.health_listen) == ("0.0.0.0:8080", "0.0.0.0:8081")
    assert str(config.path(config.index.directory)) == "/index"


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_the_broker_starts(model: dict[str, Any], tmp_path: Path) -> None:
    """Formatted and started by the file's own words, on other ports, it takes a notary; without an id it is not formatted."""
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
            assert "Kafka at 127.0.0.1" in ran.stderr, ran.stderr
            time.sleep(1)
        assert "the loss of a disk loses the log" in ran.stderr
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.wait()


def storage(runtime: Runtime, words: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run Kafka's storage tool."""
    return subprocess.run([find_java().path, "-cp", runtime.classpath, "kafka.tools.StorageTool", *words], capture_output=True, check=False)
