"""Snapshots in S3, on moto's server: a real HTTP server that speaks S3, in a process of its own."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from s3fs import S3FileSystem

from deploy.local.ports import free_ports
from notary.index import viewing
from notary.snapshots.store import MANIFESTS, store_of
from tests.notary.snapshots.fixture import SnapshotFixture

BUCKET = "copies"
URL = f"s3://{BUCKET}/of/london"
START_S_MAX = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server without buckets. Yields its URL."""
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    printed = tmp_path_factory.mktemp("s3") / "s3.txt"
    with printed.open("wb") as said:
        command = [sys.executable, "-P", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
        try:
            ends_s = time.monotonic() + START_S_MAX
            with httpx.Client(transport=httpx.HTTPTransport(retries=3), trust_env=False, timeout=60) as client:
                while True:
                    assert server.poll() is None, printed.read_text()
                    try:
                        client.get(endpoint).raise_for_status()
                        break
                    except httpx.TransportError:
                        assert time.monotonic() < ends_s, "the server does not answer"
            yield endpoint
        finally:
            server.kill()
            server.wait()


@pytest.fixture
def s3(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Leave one empty bucket on the server, and point the AWS variables at it. Returns its URL."""
    settings = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "eu-central-1"}
    for name, value in (settings | {"AWS_ENDPOINT_URL": server, "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1"}).items():
        monkeypatch.setenv(name, value)
    httpx.post(f"{server}/moto-api/reset", trust_env=False, timeout=60).raise_for_status()
    httpx.put(f"{server}/{BUCKET}", trust_env=False, timeout=60).raise_for_status()
    return server


def _objects(endpoint: str) -> list[str]:
    """Returns the keys of all objects in the bucket."""
    page = httpx.get(f"{endpoint}/{BUCKET}?list-type=2", trust_env=False, timeout=60).raise_for_status().text
    return sorted(part.partition("</Key>")[0] for part in page.split("<Key>")[1:])


def _run(fixture: SnapshotFixture, action: str, *flags: str, code: int = 0) -> dict[str, Any]:
    return fixture.snapshot(action, "--url", URL, *flags, code=code)


def test_a_snapshot_in_s3(fixture: SnapshotFixture, s3: str) -> None:
    """A snapshot is made, listed, verified, restored and pruned in S3; a second one uploads only its own manifest and new files."""
    first = _run(fixture, "create")
    assert first["made"]
    before = _objects(s3)
    assert [name for name in before if name.startswith("of/london/manifests/")], before
    second = _run(fixture, "create")
    assert [each["snapshot"] for each in _run(fixture, "list")["snapshots"]] == [second["snapshot"], first["snapshot"]]
    tables = [name for name in before if name.startswith("of/london/files/")]
    assert tables
    assert set(tables) <= set(_objects(s3))
    assert _run(fixture, "verify", "--all")["problem"] is None

    restored = _run(fixture, "restore", "--name", "worker-2")
    assert restored["snapshot"] == second["snapshot"]
    with viewing(fixture.directory.path / "index" / "worker-2") as view:
        assert (view.position_next, view.root.hex()) == (second["decisions"], second["root"])

    assert _run(fixture, "prune", "--keep", "1", "--margin-s", "0")["snapshots"] == [first["snapshot"]]
    assert [each["snapshot"] for each in _run(fixture, "list")["snapshots"]] == [second["snapshot"]]
    assert _run(fixture, "verify", "--all")["problem"] is None


def test_an_object_that_is_gone(fixture: SnapshotFixture, s3: str) -> None:
    """A snapshot of which S3 has lost an object is not restored, and the object is named."""
    _run(fixture, "create")
    lost = next(name for name in _objects(s3) if name.startswith("of/london/files/"))
    S3FileSystem(skip_instance_cache=True).rm_file(f"{BUCKET}/{lost}")
    assert lost.rpartition("/")[2][:16] in str(_run(fixture, "verify", "--all", code=1))
    assert _run(fixture, "restore", "--name", "worker-2", code=1)["stderr"]
    assert not (fixture.directory.path / "index" / "worker-2" / "CURRENT").exists()


def test_a_server_that_is_away(fixture: SnapshotFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server the command names the store and the problem."""
    (port,) = free_ports(1)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert URL in _run(fixture, "list", code=2)["stderr"]


@pytest.mark.seconds
def test_a_folder_that_a_console_made(s3: str, tmp_path: Path) -> None:
    """The empty object that `Create folder` in a console makes is no manifest."""
    store = store_of(URL, tmp_path)
    httpx.put(f"{s3}/{BUCKET}/of/london/{MANIFESTS}/", trust_env=False).raise_for_status()
    assert store.sizes(MANIFESTS) == {}
    (tmp_path / "1").write_bytes(b"manifest")
    store.put(tmp_path / "1", MANIFESTS, "1")
    assert store.sizes(MANIFESTS) == {"1": 8}
