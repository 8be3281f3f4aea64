"""Brokers' certificates that are not accepted, on real TLS connections. `tests/deploy/manifests/test_users.py` has a real broker's."""

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509

from deploy.local.ports import free_ports
from ordering.certificates import Handshake, shake_hands
from ordering.connection import KafkaSecurity
from ordering.errors import NotReady
from ordering.kafka import KafkaLog
from tests.notary.certificates import DAY, Authority, Pair


@pytest.fixture(autouse=True)
def long_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take more than the second that a handshake gets."""
    monkeypatch.setattr("ordering.certificates.HANDSHAKE_S_MAX", 60.0)


@contextmanager
def speaking(folder: Path, pair: Pair, clients: Authority | None = None) -> Iterator[str]:
    """A server with this certificate, which closes each connection; it wants a certificate of `clients`, if any. Yields its address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pair.put(folder, "broker"))
    if clients is not None:
        context.load_verify_locations(clients.put(folder / "clients.pem"))
        context.verify_mode = ssl.CERT_REQUIRED

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
                secured.unwrap()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=serve)
        server.start()
        try:
            yield "127.0.0.1:{1}".format(*listening.getsockname())
        finally:
            listening.shutdown(socket.SHUT_RDWR)  # wakes `accept`
            server.join()


def trusting(folder: Path, authority: Authority) -> KafkaSecurity:
    return KafkaSecurity(ca_file=str(authority.put(folder / "ca.pem")))


@pytest.mark.parametrize(
    ("until", "trusts", "asks", "reason"),
    [
        (-DAY / 2, True, False, "certificate verify failed: certificate has expired"),
        (DAY, False, False, "certificate verify failed: unable to get local issuer certificate"),
        (DAY, True, True, "certificate required"),
    ],
    ids=["the broker's has expired", "the broker's authority is unknown", "ours is missing"],
)
async def test_the_reason_is_named(tmp_path: Path, until: datetime.timedelta, trusts: bool, asks: bool, reason: str) -> None:
    """The error names the broker, and why TLS fails there, whichever side does not accept the other's certificate."""
    authority, other = Authority(), Authority("Other")
    with speaking(tmp_path, authority.server(until=until), other if asks else None) as broker:
        security = trusting(tmp_path, authority if trusts else other)
        with pytest.raises(NotReady) as raised:
            await KafkaLog.open(broker, "notary", security=security)
    assert f"Unable to bootstrap from [('127.0.0.1', {broker.split(':')[1]}" in str(raised.value)
    assert f"; the TLS handshake with {broker} fails: [" in str(raised.value)
    assert str(raised.value).endswith(reason)


async def test_a_broker_that_is_away_has_no_reason_in_tls(tmp_path: Path) -> None:
    """Where nobody listens, and where the handshake succeeds, no reason in TLS is named."""
    authority = Authority()
    away = f"127.0.0.1:{free_ports(1)[0]}"
    with speaking(tmp_path, authority.server()) as broker:
        for brokers in (away, broker, f"{away},{broker}"):
            with pytest.raises(NotReady, match="Unable to bootstrap from") as raised:
                await KafkaLog.open(brokers, "notary", security=trusting(tmp_path, authority))
            assert "TLS" not in str(raised.value)


async def test_the_end_of_a_certificate(tmp_path: Path) -> None:
    """A handshake shows the end of a certificate that is accepted, and of no other."""
    authority = Authority()
    good, expired = authority.server(), authority.server(until=-DAY / 2)
    context = ssl.create_default_context(cadata=authority.pem.decode())
    for pair, ends in ((good, x509.load_pem_x509_certificate(good.certificate).not_valid_after_utc.timestamp()), (expired, None)):
        with speaking(tmp_path, pair) as broker:
            host, port = broker.split(":")
            found = await shake_hands(host, int(port), context)
        assert (found.certificate_ends_s, bool(found.problem)) == (ends, pair is expired)
    assert await shake_hands("127.0.0.1", free_ports(1)[0], context) == Handshake()
