"""The service over TLS, on real connections: rejected and accepted clients, and the renewal of a certificate."""

import contextlib
import datetime
import json
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from deploy.local.ports import free_ports
from notary import cli
from notary.client import Client, RetryPolicy, Signer, TransactionRequest, Unreachable, tls_context
from notary.tls import Certificates, TlsFiles
from ordering.errors import ConfigurationError
from tests.notary.certificates import DAY, Authority, Pair, serial_of
from tests.notary.http.checked_client import JSON, SOCKET_S_MAX, WITH_ACCEPTORS
from tests.notary.party import Bank, fresh_hash, fresh_state, spend
from tests.notary.process import EXIT_S_MAX, NotaryDirectory, NotaryProcess, serve_fails, wait_until

Start = Callable[..., NotaryProcess]
SOON = datetime.timedelta(minutes=5)
"""The distance from now for dates that are nearly reached or just passed; clocks differ by less."""
CHECKED_S = 0.2
"""The time between two looks at a worker, which looks at its files every second. A handshake costs milliseconds of a core."""


class Service:
    """A worker with TLS, and the files of its certificate."""

    def __init__(self, directory: NotaryDirectory, start: Start, acceptors: int, **settings: str) -> None:
        self.folder = directory.path
        self.authority = Authority()
        self.ca_file = self.authority.put(directory.path / "server-ca.pem")
        self.pair = self.authority.server()
        self.pair.put(directory.path, "server")
        self.process = start(directory.config, settings=tls_settings(acceptors) | settings)
        host, _, port = self.process.url.removeprefix("https://").rpartition(":")
        self.address = host, int(port)
        self._anonymous = self.context()

    def context(self, client: Pair | None = None) -> ssl.SSLContext:
        """Returns a client's context, with this client certificate."""
        files = (None, None) if client is None else client.put(self.folder, "client")
        return tls_context(self.ca_file, *files)

    def connect(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        """Returns a connection after its handshake."""
        return context.wrap_socket(socket.create_connection(self.address, SOCKET_S_MAX), server_hostname="localhost")

    def ask(self, context: ssl.SSLContext, path: str = "/livez") -> int:
        """Returns the status of one call on a new connection. In TLS 1.3 only the call shows that the client's certificate is rejected."""
        with self.connect(context) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: notary\r\nConnection: close\r\n\r\n".encode())
            answer = b""
            while data := connection.recv(1 << 16):
                answer += data
        if not answer:
            raise ConnectionResetError("the connection was closed without an answer")
        return int(answer.split()[1])

    def shown(self) -> int:
        """The serial number of the certificate on new connections."""
        with self.connect(self._anonymous) as connection:
            certificate = connection.getpeercert(binary_form=True)
        assert certificate is not None
        return serial_of(certificate)

    def wait_until_shown(self, pair: Pair) -> None:
        """Wait until several new connections in a row, so that each acceptor process had some, get this certificate."""
        number = serial_of(pair.certificate)
        wait_until(lambda: all(self.shown() == number for _ in range(8)), CHECKED_S)

    def metric(self, name: str) -> float:
        """Returns the value of a metric."""
        text = httpx.get(self.process.url + "/metrics", verify=self._anonymous, trust_env=False, timeout=60).text
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name + " "))


def tls_settings(acceptors: int = 0) -> dict[str, str]:
    return {"HTTP_ACCEPTOR_PROCESSES": str(acceptors), "HTTP_TLS_CERT_FILE": "server.pem", "HTTP_TLS_KEY_FILE": "server-key.pem"}


@pytest.fixture
def serve_tls(own_directory: NotaryDirectory, notary_process: Start, acceptors: int) -> Iterator[Callable[..., Service]]:
    """Starts the worker with these settings, and checks that it ends without an error."""
    started: list[Service] = []

    def start(**settings: str) -> Service:
        started.append(Service(own_directory, notary_process, acceptors, **settings))
        return started[-1]

    yield start
    for service in started:
        assert service.process.stop() == 0


# ---- rejected clients ----


@WITH_ACCEPTORS
def test_nothing_older_than_tls_1_3(serve_tls: Callable[..., Service]) -> None:
    """A client with at most TLS 1.2 fails the handshake, one without TLS gets no answer; both are counted.

    So does a client that trusts another authority, or only the machine's.
    """
    service = serve_tls()
    old = service.context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        service.connect(old)
    with socket.create_connection(service.address, SOCKET_S_MAX) as plain:
        plain.sendall(b"GET /livez HTTP/1.1\r\nHost: notary\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in plain.recv(1 << 16)
    with service.connect(service.context()) as connection:
        assert connection.version() == "TLSv1.3"
    wait_until(lambda: service.metric("notary_tls_handshakes_failed_total") == 2, CHECKED_S)
    other = Authority("Other").put(service.folder / "other-ca.pem")
    for context in (tls_context(other), tls_context()):
        with pytest.raises(ssl.SSLCertVerificationError):
            service.connect(context)


@WITH_ACCEPTORS
@pytest.mark.parametrize("required", [True, False], ids=["required", "optional"])
def test_only_a_valid_client_certificate_is_accepted(
    own_directory: NotaryDirectory, serve_tls: Callable[..., Service], required: bool
) -> None:
    """A foreign, an expired and a server's certificate are rejected, a valid one is not; a setting decides on clients without one."""
    clients = Authority("Clients")
    clients.put(own_directory.path / "client-ca.pem")
    service = serve_tls(HTTP_TLS_CLIENT_CA_FILE="client-ca.pem", HTTP_TLS_CLIENT_CERT="required" if required else "optional")
    assert service.ask(service.context(clients.client())) == 200
    rejected = {
        "foreign": Authority("Clients").client(),
        "expired": clients.client(since=-2 * DAY, until=-SOON),
        "not yet valid": clients.client(since=SOON),
        "a server's": clients.server(),
    }
    for what, pair in rejected.items():
        with pytest.raises((ssl.SSLError, ConnectionError)):
            pytest.fail(f"{what}: {service.ask(service.context(pair))}")
    if required:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            service.ask(service.context())
    else:
        assert service.ask(service.context()) == 200


@WITH_ACCEPTORS
def test_other_authorities_take_effect_without_a_restart(own_directory: NotaryDirectory, serve_tls: Callable[..., Service]) -> None:
    """A replaced `tls_client_ca_file` takes effect without a restart: clients of its authorities are accepted, and no others."""
    former, present = Authority("Former"), Authority("Present")
    former.put(own_directory.path / "client-ca.pem")
    service = serve_tls(HTTP_TLS_CLIENT_CA_FILE="client-ca.pem", HTTP_TLS_CLIENT_CERT="optional")

    def is_taken(pair: Pair) -> bool:
        try:
            return service.ask(service.context(pair)) == 200
        except (ssl.SSLError, ConnectionError):
            return False

    old, new = former.client(), present.client()
    assert (is_taken(old), is_taken(new)) == (True, False)
    present.put(own_directory.path / "client-ca.pem")
    wait_until(lambda: all(is_taken(new) for _ in range(8)), CHECKED_S)
    assert not any(is_taken(old) for _ in range(8))


@WITH_ACCEPTORS
def test_strangers_in_a_handshake_do_not_keep_others_out(serve_tls: Callable[..., Service]) -> None:
    """A connection that sends nothing is closed after `head_ms_max`, and does not keep others out until then."""
    service = serve_tls(HTTP_HEAD_MS_MAX="3000", HTTP_CONNECTIONS_MAX="16")
    with contextlib.ExitStack() as open_ones:
        silent = [open_ones.enter_context(socket.create_connection(service.address, SOCKET_S_MAX)) for _ in range(4)]
        assert service.ask(service.context()) == 200
        for one in silent:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""


# ---- the notary's own client ----


@WITH_ACCEPTORS
def test_the_client_needs_both_files(own_directory: NotaryDirectory, bank: Bank, serve_tls: Callable[..., Service]) -> None:
    """With the authority's file and a client certificate the client gets decisions; without them no URL works, and the error says why."""
    clients = Authority("Clients")
    clients.put(own_directory.path / "client-ca.pem")
    service = serve_tls(HTTP_TLS_CLIENT_CA_FILE="client-ca.pem")
    request = TransactionRequest(inputs=[fresh_state()], content_hash=fresh_hash())
    with Client([service.process.url], bank.name, Signer(bank.sign), tls=service.context(clients.client())) as client:
        (answer,) = client.submit([request])
        assert answer.committed
    (service.folder / "bank.pem").write_bytes(bank.private_pem)
    (service.folder / "bank.pem").chmod(0o600)
    (service.folder / "requests.json").write_text(json.dumps([spend()]))
    command = ["submit", str(service.folder / "requests.json"), "--party", bank.name, "--key", str(service.folder / "bank.pem")]
    shown = ["--tls-cert", str(service.folder / "client.pem"), "--tls-key", str(service.folder / "client-key.pem")]
    assert cli.main([*command, "--url", service.process.url, "--tls-ca", str(service.ca_file), *shown]) == 0
    for tls in (service.context(), None):
        with Client([service.process.url], retry_policy=RetryPolicy(attempt_s_max=1.0), tls=tls) as client, pytest.raises(Unreachable):
            client.notary(deadline_s=1.5)


@WITH_ACCEPTORS
def test_the_client_gets_the_remedy(own_directory: NotaryDirectory, serve_tls: Callable[..., Service]) -> None:
    """An error for a missing authority, or for the wrong one of two ports, names the right flag or URL.

    Probes reach `health_listen` by plain HTTP, whatever certificates clients must show.
    """
    (health,) = free_ports(1)
    Authority("Clients").put(own_directory.path / "client-ca.pem")
    service = serve_tls(HTTP_TLS_CLIENT_CA_FILE="client-ca.pem", HTTP_HEALTH_LISTEN=f"127.0.0.1:{health}")
    assert httpx.get(f"http://127.0.0.1:{health}/readyz", trust_env=False, timeout=60).text == "ok\n"
    secured = service.process.url
    plain = secured.replace("https:", "http:")

    def said(url: str) -> str:
        with Client([url], retry_policy=RetryPolicy(attempt_s_max=5.0)) as client, pytest.raises(Unreachable) as failed:
            client.notary(deadline_s=1.5)
        return str(failed.value)

    assert "is its authority in the file of `--tls-ca`" in said(secured)
    assert "It may speak TLS: then use https://" in said(plain)
    assert "it may speak plain HTTP, as a health port does: then use http://" in said(f"https://127.0.0.1:{health}")


@WITH_ACCEPTORS
def test_the_largest_call_and_its_answer_are_complete(bank: Bank, serve_tls: Callable[..., Service]) -> None:
    """The largest submission and its answer, with all receipts, are complete, also when the connection ends after them."""
    service = serve_tls()
    body = bank.body(*(spend(*(fresh_state() for _ in range(20))) for _ in range(1000)))
    assert len(body) > 1 << 20
    with httpx.Client(base_url=service.process.url, verify=service.context(), timeout=60, trust_env=False) as http:
        for headers in (JSON, JSON | {"connection": "close"}):
            answer = http.post("/v1/submissions", content=body, headers=headers)
            assert answer.status_code == 200
            assert sum("receipt" in decision for decision in answer.json()["decisions"]) == 1000


# ---- renewal ----


@WITH_ACCEPTORS
def test_a_certificate_is_renewed_under_load(bank: Bank, serve_tls: Callable[..., Service]) -> None:
    """Under load, on kept and new connections, the files are replaced three times: no call fails, and new connections get the new one."""
    service = serve_tls()
    context, ends, failed, answered = service.context(), threading.Event(), list[str](), [0, 0]

    def load(at: int) -> None:
        # One client keeps its connection, the other makes a new one for each call.
        headers = JSON if at else JSON | {"connection": "close"}
        with httpx.Client(base_url=service.process.url, verify=context, timeout=SOCKET_S_MAX, trust_env=False) as http:
            while not ends.is_set():
                try:
                    answer = http.post("/v1/submissions", content=bank.body(spend()), headers=headers)
                except httpx.HTTPError as problem:
                    failed.append(repr(problem))
                    return
                if answer.is_success:
                    answered[at] += 1
                elif "/problems/not-ready" not in answer.text:  # a machine that paused compares its log first
                    failed.append(answer.text)
                time.sleep(0.03)  # a load, not a full core

    threads = [threading.Thread(target=load, args=(at,)) for at in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            renewed = service.authority.server()
            renewed.put(service.folder, "server")
            service.wait_until_shown(renewed)
            before = list(answered)
            while not failed and not all(map(int.__gt__, answered, before)):
                time.sleep(0.02)
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert failed == []
    assert service.metric("notary_tls_problem") == 0


def test_files_that_do_not_fit_keep_the_pair_in_use(serve_tls: Callable[..., Service], acceptors: int) -> None:
    """Files that do not match are reported, in the log and in a metric; the certificate in use stays until the files match again."""
    service = serve_tls()
    expected = service.pair
    authority = service.authority
    certificate = service.folder / "server.pem"
    harms: list[Callable[[], object]] = [
        lambda: certificate.write_bytes(authority.server().certificate),
        lambda: authority.server(since=-2 * DAY, until=-SOON).put(service.folder, "server"),
        lambda: certificate.write_bytes(b"garbage"),
        certificate.unlink,
    ]
    for days, harm in enumerate(harms[:1] if acceptors else harms, 60):
        before = len(service.process.stderr())
        harm()
        wait_until(lambda: service.metric("notary_tls_problem") == 1, CHECKED_S)
        assert service.shown() == serial_of(expected.certificate)
        complaints = [
            line for line in service.process.stderr()[before:].splitlines() if "is rejected, the present one stays in use" in line
        ]
        assert complaints
        assert all(str(certificate) in line for line in complaints)
        expected = authority.server(until=days * DAY)
        expected.put(service.folder, "server")
        wait_until(lambda: service.metric("notary_tls_problem") == 0, CHECKED_S)
        service.wait_until_shown(expected)
        assert service.metric("notary_tls_certificate_expiry_seconds") > time.time() + (days - 1) * DAY.total_seconds()


@WITH_ACCEPTORS
def test_sighup_reads_the_certificate_at_once(serve_tls: Callable[..., Service], acceptors: int) -> None:
    """On SIGHUP the worker and its acceptor processes load the new certificate at once, and log it, also if it is the same."""
    service = serve_tls()
    renewed = service.authority.server()
    renewed.put(service.folder, "server")
    for times in (1, 2, 3):
        service.process.signal(signal.SIGHUP)
        # The regular checks of the worker and the processes may have come first.
        wait_until(lambda least=times * (1 + acceptors): service.process.stderr().count("certificate read") >= least)  # type: ignore[misc]
    service.wait_until_shown(renewed)


# ---- the end, and the start ----


def test_idle_clients_do_not_hold_the_end_up(serve_tls: Callable[..., Service]) -> None:
    """At the end, a client that does not read TLS's close message is disconnected, and so is one without a handshake."""
    service = serve_tls()
    with socket.create_connection(service.address, SOCKET_S_MAX), service.connect(service.context()) as idle:
        idle.sendall(b"GET /livez HTTP/1.1\r\nHost: notary\r\n\r\n")
        assert b"200" in idle.recv(1 << 16)
        service.process.signal(signal.SIGTERM)
        assert service.process.process.wait(EXIT_S_MAX) == 0
        service.process.check_quiet("Cancel")


@WITH_ACCEPTORS
def test_clients_that_leave_during_their_calls_fill_no_log(serve_tls: Callable[..., Service]) -> None:
    """uvloop has a warning for each answer to a client that is gone, and a client may have sent thousands of calls."""
    service = serve_tls()
    for _ in range(20):
        with service.connect(service.context()) as leaving:
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            leaving.sendall(b"GET /livez HTTP/1.1\r\nHost: notary\r\n\r\n" * 2000)
    assert service.ask(service.context()) == 200
    service.process.check_quiet("SSL connection is closed")


BROKEN: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no-certificate": ("server.pem", Path.unlink, "No such file"),
    "no-key": ("server-key.pem", Path.unlink, "No such file"),
    "garbage": ("server.pem", lambda file: file.write_text("garbage"), "no PEM certificate"),
    "garbage-key": ("server-key.pem", lambda file: file.write_text("garbage"), "unencrypted PEM private key"),
    "open-key": ("server-key.pem", lambda file: file.chmod(0o644), "chmod 600"),
    "no-authorities": ("client-ca.pem", Path.unlink, "No such file"),
    "garbage-authorities": ("client-ca.pem", lambda file: file.write_text("garbage"), "no PEM certificates"),
    "another-key": ("server-key.pem", lambda file: file.write_bytes(Authority().server().key), "is not the key of this certificate"),
    "expired": (
        "server.pem",
        lambda file: Authority().server(since=-2 * DAY, until=-SOON).put(file.parent, "server"),
        "Put a renewed certificate there",
    ),
}


def _wrong(folder: Path, name: str, harm: Callable[[Path], object]) -> None:
    """Put a service's files there, and harm the one with that name."""
    authority = Authority()
    authority.put(folder / "client-ca.pem")
    authority.server().put(folder, "server")
    harm(folder / name)


@pytest.mark.parametrize(("name", "harm", "why"), BROKEN.values(), ids=BROKEN)
def test_files_that_are_wrong_at_the_start(tmp_path: Path, name: str, harm: Callable[[Path], object], why: str) -> None:
    """Bad files are an error of the configuration, with the file's name and the remedy."""
    _wrong(tmp_path, name, harm)
    certificate, key, authorities = (str(tmp_path / file) for file in ("server.pem", "server-key.pem", "client-ca.pem"))
    files = TlsFiles(certificate, key, authorities, client_cert_required=True)
    with pytest.raises(ConfigurationError) as raised:
        Certificates(files)
    assert why in str(raised.value)
    assert str(tmp_path / name) in str(raised.value)


@pytest.mark.seconds
def test_a_worker_with_wrong_files_does_not_start(own_directory: NotaryDirectory) -> None:
    """Bad files at the start give exit 2, the file's name and the remedy."""
    name, harm, why = BROKEN["garbage-authorities"]
    _wrong(own_directory.path, name, harm)
    returned = serve_fails(own_directory.config, **tls_settings(), HTTP_TLS_CLIENT_CA_FILE="client-ca.pem")
    assert why in returned
    assert str(own_directory.path / name) in returned
