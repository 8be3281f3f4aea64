"""Tests deploy.centres with real namespaces and devices. Sockets have short timeouts only where a test expects silence."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.centres import Centres
from deploy.centres.device import NAME
from deploy.local import CannotRun
from deploy.namespace import OWN, inside, run_inside
from tests.planted import Planted
from tests.rights import needs_root

pytestmark = [pytest.mark.chaos, needs_root]

PORT = 5_000
SILENCE_S = 0.3


@pytest.fixture
def centres() -> Iterator[Centres]:
    with Centres(3) as made:
        yield made


def test_nothing_is_imported_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process between the centres, which runs as root, does not import modules that are planted in its working directory."""
    planted = Planted(tmp_path / "planted")
    planted.stand_here(monkeypatch)
    with Centres(1):
        assert planted.imported == []


@contextlib.contextmanager
def echo(centres: Centres, number: int) -> Iterator[None]:
    """A server in a centre that echoes the bytes of one client after the other."""
    with inside(centres.network(number)):
        server = socket.create_server((centres.host(number), PORT))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    while received := connection.recv(1 << 20):
                        connection.sendall(received)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def connection(centres: Centres, source: int, target: int) -> socket.socket:
    with inside(centres.network(source)):
        made = socket.create_connection((centres.host(target), PORT), timeout=30)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def round_trip_s(made: socket.socket) -> float:
    began = time.monotonic()
    made.sendall(b"x")
    assert made.recv(1) == b"x"
    return time.monotonic() - began


def silent(made: socket.socket) -> bool:
    made.settimeout(SILENCE_S)
    try:
        return made.recv(1) == b""
    except TimeoutError:
        return True
    finally:
        made.settimeout(30)


def test_centres_reach_each_other_and_nothing_else(centres: Centres) -> None:
    """Each centre reaches the others at their addresses; a foreign network, and this machine's own, are unreachable."""
    with echo(centres, 1), connection(centres, 2, 1) as from_2:
        round_trip_s(from_2)
    with echo(centres, 3), connection(centres, 2, 3) as from_2:
        round_trip_s(from_2)
    with inside(centres.network(1)), socket.socket() as outward, pytest.raises(OSError, match="unreachable"):
        outward.connect(("192.0.2.1", 80))
    with socket.create_server(("127.0.0.1", 0)) as here:
        with inside(centres.network(1)):
            inner = socket.socket()
        with inner, pytest.raises(ConnectionRefusedError):
            inner.connect(here.getsockname())


def test_the_delay_counts_each_way(centres: Centres) -> None:
    """A round trip takes at least twice the delay, and less without it."""
    with echo(centres, 1), connection(centres, 2, 1) as made:
        centres.slow(30)
        far_s = min(round_trip_s(made) for _ in range(5))
        assert far_s >= 0.06
        centres.slow(0)
        while round_trip_s(made) >= far_s:
            pass


def test_one_direction_is_cut(centres: Centres) -> None:
    """With one direction cut, a message arrives and its answer does not; after the healing the answer comes."""
    with echo(centres, 1), connection(centres, 2, 1) as made:
        round_trip_s(made)
        before = centres.counts()
        centres.cut(1, 2)
        made.sendall(b"y")
        while centres.counts()[2, 1]["packets"] == before[2, 1]["packets"]:
            time.sleep(0.02)
        assert silent(made)
        after = centres.counts()
        assert after[1, 2]["packets"] == before[1, 2]["packets"]
        centres.heal()
        assert made.recv(1) == b"y"


def test_a_centre_that_is_cut_off(centres: Centres) -> None:
    """The other centres cannot reach an isolated one, but each other; after a partial healing the named centre reaches it again."""
    with echo(centres, 1), connection(centres, 2, 1) as from_2, echo(centres, 2), connection(centres, 3, 2) as between:
        round_trip_s(from_2)
        lines = centres.cut_off(1)
        assert sorted(lines) == [(1, 2), (1, 3), (2, 1), (3, 1)]
        from_2.sendall(b"y")
        assert silent(from_2)
        round_trip_s(between)
        centres.heal([(1, 2), (2, 1)])
        assert from_2.recv(1) == b"y"


def test_much_is_moved_completely(centres: Centres) -> None:
    """Some megabytes pass both ways unchanged over lines with loss and delay."""
    centres.slow(1, jitter_ms=1, loss=0.01)
    content = os.urandom(8 << 20)
    with echo(centres, 1), connection(centres, 3, 1) as made:
        sender = threading.Thread(target=made.sendall, args=(content,))
        sender.start()
        received = bytearray()
        while len(received) < len(content):
            received += made.recv(1 << 20)
        sender.join()
    assert received == content
    assert sum(line["lost"] for line in centres.counts().values()) > 0


def test_a_process_started_in_a_centre_has_its_devices(centres: Centres) -> None:
    """A process started in a centre has that centre's devices, and this thread is back in its own network."""
    here = os.readlink(OWN)
    with inside(centres.network(2)):
        listed = subprocess.run(["cat", "/proc/net/dev"], capture_output=True, text=True, check=True).stdout
    assert NAME.decode() + ":" in listed
    assert os.readlink(OWN) == here
    assert run_inside(centres.network(2), lambda: os.readlink(OWN)) != here


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    """The forwarder ends with its owner, and so do the centres' networks; this machine never had one of their devices."""
    script = (
        "import time; from deploy.centres import Centres\n"
        "with Centres(2) as centres:\n"
        "    print(centres._forwarder.pid, centres.network(1), flush=True); time.sleep(120)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as owner:
        assert owner.stdout is not None
        forwarder, network = owner.stdout.readline().split()
        assert Path(network).exists()
        assert NAME.decode() + ":" not in Path("/proc/net/dev").read_text()
        owner.send_signal(signal.SIGKILL)
    while Path(f"/proc/{forwarder}/fd/0").exists():
        time.sleep(0.02)
    with pytest.raises(OSError, match=network), inside(network):
        pass


def test_without_the_rights_it_says_what_is_needed() -> None:
    """Without the right to make a namespace the error says what is needed."""
    unprivileged = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--securebits=+noroot"]
    forward = [sys.executable, "-m", "deploy.centres.forward", "2"]
    ended = subprocess.run([*unprivileged, *forward], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert ended.returncode == 2
    assert "root (CAP_SYS_ADMIN and CAP_NET_ADMIN)" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_too_many_centres_are_rejected() -> None:
    """A number of centres without addresses is rejected, with the valid numbers."""
    with pytest.raises(CannotRun, match="choose 1 to 9"), Centres(10):
        pass
