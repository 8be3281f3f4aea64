"""`Authority`: a certificate authority in a folder, which issues, renews and revokes certificates."""

import datetime
import ipaddress
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ordering.durable import replace_file

DAYS: Final = 398
"""The lifetime of a certificate: a year and a month, so that a yearly renewal is never late."""
CA_DAYS: Final = 3650
CLOCKS_APART: Final = datetime.timedelta(minutes=5)
"""New certificates are valid from this long before their issue, for machines whose clock is behind."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}").fullmatch
_TAKEN = ("issued",)


class PkiError(Exception):
    """The authority cannot do this. The message names the problem, the value and a remedy."""


class Authority:
    """A certificate authority in a folder. Made by `create` or `open`."""

    def __init__(self, directory: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.directory = directory
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, directory: Path, name: str = "Notary CA", days: int = CA_DAYS) -> "Authority":
        """Make a new authority in a folder that has none, with an empty revocation list."""
        if (directory / "ca.pem").exists():
            raise PkiError(f"{directory} has an authority already: use it, or name another folder")
        if any((directory / "issued").glob("*.pem")):
            raise PkiError(
                f"{directory} has issued certificates, and no ca.pem: copy it back from /etc/notary/tls of a host, or name another folder"
            )
        (directory / "issued").mkdir(parents=True, exist_ok=True)
        key, now = ec.generate_private_key(ec.SECP256R1()), _now()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(subject, subject, key.public_key(), now - CLOCKS_APART, now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(ca=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        # The certificate comes last: a folder that has one lacks at most the revocation list, which `open` writes.
        replace_file(directory / "ca-key.pem", _key_pem(key), mode=0o600)
        replace_file(directory / "ca.pem", _pem(certificate))
        return cls.open(directory)

    @classmethod
    def open(cls, directory: Path) -> "Authority":
        """Returns the authority of a folder. Raises `PkiError` if there is none, or if it cannot be read."""
        try:
            key = serialization.load_pem_private_key((directory / "ca-key.pem").read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
        except FileNotFoundError as problem:
            raise PkiError(f"{directory} has no certificate authority: {problem.filename} is missing; make one with `init`") from None
        except (OSError, ValueError) as problem:
            raise PkiError(f"the authority in {directory} cannot be read: {problem}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise PkiError(f"{directory}/ca-key.pem is not the key of {directory}/ca.pem: put the right one there")
        authority = cls(directory, key, certificate)
        if not (directory / "crl.pem").exists():
            if any(authority.issued()):  # an empty list would bring back certificates that were revoked
                raise PkiError(f"{directory} has issued certificates, and no crl.pem: copy it back from /etc/notary/tls of a host")
            authority._write_list([])
        return authority

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = (),
        server: bool = False,
        crl_url: str = "",
        days: int = DAYS,
        valid_from: datetime.datetime | None = None,
    ) -> x509.Certificate:
        """Make a key and a certificate for `name`, in the folder of that name; replaces those that are there.

        `hosts` are the addresses and DNS names by which it is reached; a `server` needs at least one. Every certificate is
        valid for a client too, since brokers are clients of each other. `crl_url` is where verifiers find the revocation
        list. Raises `PkiError`.
        """
        if _NAME(name) is None or name in _TAKEN:
            raise PkiError(f"the name {name!r} should be 1 to 63 letters, digits, dots, dashes, underscores: it names a folder")
        if server and not hosts:
            raise PkiError(f"the server {name} has no host, and clients compare the host with the certificate: give it one")
        if not 1 <= days <= CA_DAYS:
            raise PkiError(f"a certificate for {days} days cannot be made: choose 1 to {CA_DAYS}")
        key, begins = ec.generate_private_key(ec.SECP256R1()), valid_from or _now() - CLOCKS_APART
        # A certificate is not trusted any more once the authority's own has ended.
        ends = min(begins + datetime.timedelta(days=days), self._certificate.not_valid_after_utc)
        if begins >= ends:
            raise PkiError(
                f"the authority in {self.directory} ends on {ends:%Y-%m-%d}: create a new authority and add it to"
                " every trust store beside this one"
            )
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if server else [])]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            _builder(subject, self._certificate.subject, key.public_key(), begins, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(_signed_by(self._certificate), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        if crl_url:
            points = [x509.DistributionPoint([x509.UniformResourceIdentifier(crl_url)], None, None, None)]
            builder = builder.add_extension(x509.CRLDistributionPoints(points), critical=False)
        self._keep(name, key, certificate := builder.sign(self._key, hashes.SHA256()))
        return certificate

    def renew(self, name: str, days: int = DAYS) -> x509.Certificate:
        """Make a new key and a certificate with the same names and purposes. The former one stays valid until it ends or is revoked."""
        former = self.certificate(name)
        purposes = former.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        return self.issue(
            name, hosts=_hosts(former), server=ExtendedKeyUsageOID.SERVER_AUTH in purposes, crl_url=_crl_url(former), days=days
        )

    def revoke(self, name: str, *, former: bool = False) -> int:
        """Put all certificates of this name on the revocation list, or with `former` all but the present one.

        Returns the number of new entries.
        """
        present = self.certificate(name)
        listed = {entry.serial_number for entry in self.revoked()}
        found = [
            certificate.serial_number
            for certificate in self.issued()
            if certificate.subject == present.subject and not (former and certificate.serial_number == present.serial_number)
        ]
        new = [serial for serial in found if serial not in listed]
        now = _now()
        made = [x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build() for serial in new]
        self._write_list([*self.revoked(), *made])
        return len(new)

    def certificate(self, name: str) -> x509.Certificate:
        """Returns the present certificate of a name. Raises `PkiError` if there is none."""
        try:
            return x509.load_pem_x509_certificate((self.directory / name / "cert.pem").read_bytes())
        except OSError:
            raise PkiError(f"{self.directory} has no certificate for {name!r}: `issue` makes one") from None

    def check_hosts(self, name: str, hosts: Sequence[str]) -> None:
        """Raise `PkiError` unless the present certificate of a name is for these hosts."""
        if sorted(found := _hosts(self.certificate(name))) != sorted(hosts):
            raise PkiError(
                f"the certificate of {name} is for {', '.join(found) or 'no host'}, wanted {', '.join(hosts) or 'no host'}: "
                f"remove the folder {self.directory / name} and make it again"
            )

    def issued(self) -> Iterator[x509.Certificate]:
        """Yields every certificate that this authority has issued."""
        for file in sorted((self.directory / "issued").glob("*.pem")):
            yield x509.load_pem_x509_certificate(file.read_bytes())

    def revoked(self) -> list[x509.RevokedCertificate]:
        """Returns the entries of the revocation list."""
        return list(x509.load_pem_x509_crl((self.directory / "crl.pem").read_bytes()))

    def _keep(self, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        folder = self.directory / name
        folder.mkdir(exist_ok=True)
        # Keep the certificate first: a crash from here on leaves one that is not in use, but that can be revoked.
        replace_file(self.directory / "issued" / f"{certificate.serial_number:040x}.pem", _pem(certificate))
        # Brokers get one file, so they never read a key with another key's certificate. A crash between the next writes leaves `key.pem`
        # and `cert.pem` that do not match: a program that loads them reports it, and `renew` makes them again.
        replace_file(folder / "keystore.pem", _key_pem(key) + _pem(certificate), mode=0o600)
        replace_file(folder / "key.pem", _key_pem(key), mode=0o600)
        replace_file(folder / "cert.pem", _pem(certificate))

    def _write_list(self, entries: Sequence[x509.RevokedCertificate]) -> None:
        # The list expires with the authority, not before: with an expired list brokers reject all connections, and acknowledge nothing.
        now, numbers = _now(), x509.CRLNumber(int(_now().timestamp() * 1000))
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._certificate.subject).last_update(now)
        builder = builder.next_update(self._certificate.not_valid_after_utc).add_extension(numbers, critical=False)
        builder = builder.add_extension(_signed_by(self._certificate), critical=False)
        for entry in entries:
            builder = builder.add_revoked_certificate(entry)
        revocations = builder.sign(self._key, hashes.SHA256())
        replace_file(self.directory / "crl.pem", revocations.public_bytes(serialization.Encoding.PEM))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begins: datetime.datetime, ends: datetime.datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(begins).not_valid_after(ends)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _signed_by(certificate: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as problem:
        raise PkiError(f"the host {host!r} is neither an address nor a DNS name in ASCII: {problem}") from None


def _hosts(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def _crl_url(certificate: x509.Certificate) -> str:
    try:
        points = certificate.extensions.get_extension_for_class(x509.CRLDistributionPoints).value
    except x509.ExtensionNotFound:
        return ""
    return str((points[0].full_name or [])[0].value)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
