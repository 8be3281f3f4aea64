"""Certificate authorities of a test, and the certificates that they issue."""

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.notary.party import PrivateKey

DAY = datetime.timedelta(days=1)


class Pair(NamedTuple):
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes

    def put(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write both into a folder, as a renewal does: each file is replaced atomically, one after the other."""
        files = folder / f"{name}.pem", folder / f"{name}-key.pem"
        for file, content in zip(files, self, strict=True):
            new = file.with_suffix(".new")
            new.write_bytes(content)
            new.chmod(0o600)
            new.replace(file)
        return files


class Authority:
    """An authority that issues certificates for servers on loopback and for clients."""

    def __init__(self, name: str = "Authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self._certificate = (
            _unsigned(self._name, self._name, self._key, -DAY, 365 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        """The authority's own certificate, PEM."""
        return self._certificate.public_bytes(Encoding.PEM)

    def put(self, file: Path) -> Path:
        """Write the authority's own certificate."""
        file.write_bytes(self.pem)
        return file

    def server(self, *, since: datetime.timedelta = -DAY, until: datetime.timedelta = 30 * DAY) -> Pair:
        """Returns the certificate of a worker on loopback, valid between these times from now."""
        return self._issue("notary", ExtendedKeyUsageOID.SERVER_AUTH, since, until)

    def client(
        self, name: str = "bank", *, since: datetime.timedelta = -DAY, until: datetime.timedelta = 30 * DAY, key: PrivateKey | None = None
    ) -> Pair:
        """Returns a client's certificate, for this key or a new one."""
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH, since, until, key)

    def _issue(
        self,
        name: str,
        usage: x509.ObjectIdentifier,
        since: datetime.timedelta,
        until: datetime.timedelta,
        key: PrivateKey | None = None,
    ) -> Pair:
        key = key or ec.generate_private_key(ec.SECP256R1())
        loopback = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        certificate = (
            _unsigned(_named(name), self._name, key, since, until)
            .add_extension(x509.SubjectAlternativeName(loopback), critical=False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Pair(
            certificate.public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )


def serial_of(certificate: bytes) -> int:
    """Returns the serial number of a certificate, PEM or DER; it is unique."""
    if certificate.startswith(b"-----"):
        return x509.load_pem_x509_certificate(certificate).serial_number
    return x509.load_der_x509_certificate(certificate).serial_number


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, since: datetime.timedelta, until: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), now + since, now + until)
