"""Tests deploy.pki with OpenSSL's verification. `test_sites.py` tests its certificates with Kafka."""

import datetime
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from deploy.pki import Authority, PkiError
from deploy.pki.__main__ import main
from deploy.render import read_sites

EXAMPLE = Path(__file__).parents[2] / "deploy" / "sites" / "sites.toml"
CRL_URL = "file:///etc/notary/tls/crl.pem"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "pki")


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def verify(authority: Authority, name: str, purpose: str, *flags: str) -> str:
    """Returns OpenSSL's complaint about a certificate; empty if it is valid."""
    folder = authority.directory
    files = ["-CAfile", str(folder / "ca.pem"), "-CRLfile", str(folder / "crl.pem"), "-crl_check"]
    command = ["openssl", "verify", "-x509_strict", *files, "-purpose", purpose, *flags, str(folder / name / "cert.pem")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr


@pytest.mark.seconds
def test_a_server_certificate_is_valid_for_its_own_names_only(authority: Authority) -> None:
    """OpenSSL accepts the certificate for a server and a client, at its own name and address, and at no other."""
    authority.issue("broker-1", hosts=["kafka.london.example", "10.77.1.1"], server=True)
    assert verify(authority, "broker-1", "sslserver", "-verify_hostname", "kafka.london.example") == ""
    assert verify(authority, "broker-1", "sslserver", "-verify_ip", "10.77.1.1") == ""
    assert verify(authority, "broker-1", "sslclient") == ""
    assert "hostname mismatch" in verify(authority, "broker-1", "sslserver", "-verify_hostname", "kafka.paris.example")
    assert "IP address mismatch" in verify(authority, "broker-1", "sslserver", "-verify_ip", "10.77.2.1")


@pytest.mark.seconds
def test_a_client_certificate_is_not_valid_for_a_server(authority: Authority) -> None:
    """OpenSSL accepts the certificate for a client and not for a server."""
    authority.issue("spark")
    assert verify(authority, "spark", "sslclient") == ""
    assert "unsuitable certificate purpose" in verify(authority, "spark", "sslserver")


def test_secrets_are_secret(tmp_path: Path, open_umask: None) -> None:
    """Every file with a private key has mode 600, whatever the umask, also when it is replaced; no other file has one."""
    assert main([str(tmp_path / "pki"), "sites", str(EXAMPLE)]) == 0
    assert main([str(tmp_path / "pki"), "renew", "broker-1"]) == 0
    files = [file for file in (tmp_path / "pki").rglob("*") if file.is_file()]
    secret = {file for file in files if b"PRIVATE KEY" in file.read_bytes()}
    assert {file for file in files if file.stat().st_mode & 0o777 == 0o600} == secret
    assert len(secret) == 1 + 2 * len(read_sites(EXAMPLE).certificates)


def test_the_key_store_is_key_and_certificate(authority: Authority) -> None:
    """The key store is PKCS #8 without a password, then the certificate: Kafka reads both from one file."""
    authority.issue("broker-1", hosts=["localhost"], server=True)
    folder = authority.directory / "broker-1"
    text = (folder / "keystore.pem").read_text()
    assert text == (folder / "key.pem").read_text() + (folder / "cert.pem").read_text()
    assert text.startswith("-----BEGIN PRIVATE KEY-----\n")


@pytest.mark.seconds
def test_a_renewal_changes_the_key_alone(authority: Authority) -> None:
    """A renewed certificate has a new key and the same names, purposes and list; both are valid until the former is revoked."""
    former = authority.issue("broker-1", hosts=["localhost", "10.77.1.1"], server=True, crl_url=CRL_URL)
    renewed = authority.renew("broker-1")
    assert authority.certificate("broker-1") == renewed
    assert renewed.public_key() != former.public_key()
    assert renewed.serial_number != former.serial_number
    assert renewed.subject == former.subject
    for kind in (x509.SubjectAlternativeName, x509.ExtendedKeyUsage, x509.CRLDistributionPoints):
        assert renewed.extensions.get_extension_for_class(kind) == former.extensions.get_extension_for_class(kind)
    assert {certificate.serial_number for certificate in authority.issued()} == {former.serial_number, renewed.serial_number}
    assert authority.revoked() == []
    assert authority.revoke("broker-1", former=True) == 1
    assert [entry.serial_number for entry in authority.revoked()] == [former.serial_number]
    assert verify(authority, "broker-1", "sslserver") == ""


def test_a_clients_renewal_is_no_servers(authority: Authority) -> None:
    """The renewal of a client's certificate does not make it a server's."""
    authority.issue("spark")
    purposes = authority.renew("spark").extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.CLIENT_AUTH]


@pytest.mark.seconds
def test_a_revocation_lists_all_certificates_of_the_name(authority: Authority) -> None:
    """All certificates of a revoked name are on the list, and no others; they stay revoked, and a second revocation changes nothing."""
    for name in ("spark", "archive"):
        authority.issue(name)
    authority.renew("archive")
    assert authority.revoke("archive") == 2
    assert "certificate revoked" in verify(authority, "archive", "sslclient")
    assert verify(authority, "spark", "sslclient") == ""
    assert authority.revoke("archive") == 0
    assert authority.revoke("spark") == 1
    assert "certificate revoked" in verify(authority, "archive", "sslclient")
    assert len(authority.revoked()) == 3


def test_the_list_does_not_end_before_the_authority(authority: Authority) -> None:
    """The revocation list lasts as long as the authority: an expired list would lock everybody out."""
    revocations = x509.load_pem_x509_crl((authority.directory / "crl.pem").read_bytes())
    ca = x509.load_pem_x509_certificate((authority.directory / "ca.pem").read_bytes())
    assert revocations.next_update_utc == ca.not_valid_after_utc
    assert revocations.is_signature_valid(ca.public_key())  # type: ignore[arg-type]


def test_a_lost_revocation_list_is_not_made_anew(authority: Authority, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty list in its place would bring back revoked certificates. A killed `init` has issued none."""
    folder = authority.directory
    (folder / "crl.pem").unlink()
    assert Authority.open(folder).revoked() == []
    authority.issue("spark")
    assert authority.revoke("spark") == 1
    (folder / "crl.pem").unlink()
    assert main([str(folder), "list"]) == 2
    assert "has issued certificates, and no crl.pem" in capsys.readouterr().err


def test_nothing_outlives_its_authority(tmp_path: Path) -> None:
    """A certificate expires no later than its authority, and an expired authority issues none."""
    short = Authority.create(tmp_path / "short", days=30)
    ca = x509.load_pem_x509_certificate((tmp_path / "short" / "ca.pem").read_bytes())
    assert short.issue("spark", days=398).not_valid_after_utc == ca.not_valid_after_utc
    with pytest.raises(PkiError, match="create a new authority and add it to every trust store beside this one"):
        short.issue("spark", valid_from=ca.not_valid_after_utc + datetime.timedelta(days=1))


@pytest.mark.seconds
def test_everything_of_a_sites_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All principals get a certificate for their hosts; a second run creates nothing; a changed host is rejected, with advice."""
    assert main([str(tmp_path / "pki"), "sites", str(EXAMPLE)]) == 0
    authority = Authority.open(tmp_path / "pki")
    for wanted in read_sites(EXAMPLE).certificates:
        authority.check_hosts(wanted.name, wanted.hosts)
        assert verify(authority, wanted.name, "sslserver" if wanted.server else "sslclient") == ""
        (place,) = authority.certificate(wanted.name).extensions.get_extension_for_class(x509.CRLDistributionPoints).value
        assert [name.value for name in place.full_name or []] == [CRL_URL]
    capsys.readouterr()
    assert main([str(tmp_path / "pki"), "sites", str(EXAMPLE)]) == 0
    assert capsys.readouterr().out == ""
    (tmp_path / "sites.toml").write_text(EXAMPLE.read_text().replace("kafka.paris.example", "kafka2.paris.example"))
    assert main([str(tmp_path / "pki"), "sites", str(tmp_path / "sites.toml")]) == 2
    said = capsys.readouterr().err
    assert "the certificate of controller-102 is for kafka.paris.example, wanted kafka2.paris.example: remove the folder" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["init"], "has an authority already"),
        (["issue", "spark"], "spark has a certificate already: `renew` replaces it"),
        (["issue", "../x"], "'../x' should be 1 to 63 letters"),
        (["issue", "issued"], "'issued' should be 1 to 63 letters"),
        (["issue", "b", "--server"], "the server b has no host"),
        (["issue", "b", "--host", "köln.example"], "neither an address nor a DNS name in ASCII"),
        (["issue", "b", "--days", "0"], "a certificate for 0 days cannot be made"),
        (["issue", "b", "--days", "9999999"], "a certificate for 9999999 days cannot be made: choose 1 to 3650"),
        (["renew", "nobody"], "has no certificate for 'nobody'"),
        (["revoke", "nobody"], "has no certificate for 'nobody'"),
        (["sites", "nowhere.toml"], "cannot read nowhere.toml"),
    ],
)
def test_an_impossible_request_is_named(authority: Authority, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    """The message names the impossible request, and the exit code is 2."""
    authority.issue("spark")
    assert main([str(authority.directory), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_key_of_another_certificate_is_rejected(authority: Authority, tmp_path: Path) -> None:
    """A folder whose key does not match its certificate, or without a key, is rejected."""
    Authority.create(tmp_path / "other")
    (tmp_path / "other" / "ca-key.pem").replace(authority.directory / "ca-key.pem")
    with pytest.raises(PkiError, match="is not the key of"):
        Authority.open(authority.directory)
    with pytest.raises(PkiError, match="make one with `init`"):
        Authority.open(tmp_path / "other")


def test_an_authority_without_its_certificate_is_not_replaced(authority: Authority, capsys: pytest.CaptureFixture[str]) -> None:
    """A new authority would overwrite the key that can renew and revoke the issued certificates. A killed `init` has issued none."""
    folder = authority.directory
    ca, key = (folder / "ca.pem").read_bytes(), (folder / "ca-key.pem").read_bytes()
    (folder / "ca.pem").unlink()
    assert main([str(folder), "init"]) == 0
    (folder / "ca.pem").write_bytes(ca)
    (folder / "ca-key.pem").write_bytes(key)
    authority.issue("spark")
    (folder / "ca.pem").unlink()
    for words in (["sites", str(EXAMPLE)], ["init"]):
        assert main([str(folder), *words]) == 2
        assert "has issued certificates, and no ca.pem" in capsys.readouterr().err
    assert (folder / "ca-key.pem").read_bytes() == key


def test_list_shows_expiry_and_revocation(authority: Authority, capsys: pytest.CaptureFixture[str]) -> None:
    """The list has each name with the expiry date of its certificate, or its revocation."""
    authority.issue("spark", days=100)
    authority.issue("archive")
    authority.revoke("archive")
    assert main([str(authority.directory), "list"]) == 0
    rows = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert rows == {"archive": "revoked", "spark": f"until {authority.certificate('spark').not_valid_after_utc:%Y-%m-%d}"}
