"""The certificate in use: the files that are loaded, the time of loading, and the log lines. The tests call `check` themselves."""

import datetime
import logging
import os
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, load_pem_private_key

from notary.client import tls_context
from notary.tls import Certificates, TlsFiles, expiry_s
from ordering.connection import KafkaSecurity
from ordering.errors import ConfigurationError
from tests.notary.certificates import DAY, Authority


def certificates_in(folder: Path) -> Certificates:
    """Certificates on a pair that was just issued."""
    Authority().server().put(folder, "server")
    return Certificates(TlsFiles(str(folder / "server.pem"), str(folder / "server-key.pem"), "", True))


def test_files_that_stay_are_not_read_again(tmp_path: Path) -> None:
    """Unchanged files are not loaded again: the context stays the same object."""
    certificates = certificates_in(tmp_path)
    context = certificates.context
    for _ in range(3):
        certificates.check()
    assert certificates.context is context


def test_a_change_is_taken_when_it_is_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A look between the two file changes of a renewal loads nothing and reports nothing."""
    certificates = certificates_in(tmp_path)
    context = certificates.context
    renewed = Authority().server(until=99 * DAY)
    (tmp_path / "server.pem").write_bytes(renewed.certificate)
    certificates.check()
    (tmp_path / "server-key.pem").write_bytes(renewed.key)
    certificates.check()
    assert (certificates.context, certificates.problem, caplog.records) == (context, "", [])
    with caplog.at_level(logging.INFO, "notary.tls"):
        certificates.check()
    assert certificates.context is not context
    assert [record.levelname for record in caplog.records] == ["INFO"]
    certificates.check()
    assert len(caplog.records) == 1


def test_a_folder_that_is_swapped_is_noticed(tmp_path: Path) -> None:
    """Kubernetes renews a Secret by switching a symbolic link to another folder; names and sizes of the files may stay the same."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        Authority().server().put(tmp_path / name, "server")
    for file in (tmp_path / "two").iterdir():
        before = (tmp_path / "one" / file.name).stat()
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    link = tmp_path / "data"
    link.symlink_to("one")
    certificates = Certificates(TlsFiles(str(link / "server.pem"), str(link / "server-key.pem"), "", True))
    context = certificates.context
    (tmp_path / "new").symlink_to("two")
    (tmp_path / "new").replace(link)
    certificates.check()
    certificates.check()
    assert certificates.context is not context


def test_a_problem_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A problem is logged once while the files are tried again; SIGHUP logs it again."""
    certificates = certificates_in(tmp_path)
    context = certificates.context
    key = (tmp_path / "server-key.pem").read_bytes()
    (tmp_path / "server-key.pem").write_bytes(Authority().server().key)
    for _ in range(4):
        certificates.check()
    assert certificates.context is context
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "is not the key of this certificate" in certificates.problem
    certificates.read_again()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    (tmp_path / "server-key.pem").write_bytes(key)
    certificates.check()
    certificates.check()
    assert certificates.problem == ""
    assert certificates.context is not context


def test_a_certificate_that_expires_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A certificate that expires in use, or has expired already, is logged once; a renewed one is then loaded."""
    Authority().server().put(tmp_path, "server")
    files = TlsFiles(str(tmp_path / "server.pem"), str(tmp_path / "server-key.pem"), "", True)
    clock = [datetime.datetime.now(datetime.UTC)]
    certificates = Certificates(files, lambda: clock[0])
    context = certificates.context

    def look_for_a_while() -> list[str]:
        caplog.clear()
        for _ in range(4):
            clock[0] += datetime.timedelta(seconds=1)
            certificates.check()
        return [record.levelname for record in caplog.records]

    assert look_for_a_while() == []
    clock[0] += 31 * DAY
    assert look_for_a_while() == ["WARNING"]
    assert "and this machine's clock says" in certificates.problem
    assert certificates.context is context
    Authority().server().put(tmp_path, "server")
    assert look_for_a_while() == ["WARNING"]
    Authority().server(until=60 * DAY).put(tmp_path, "server")
    assert look_for_a_while() == []
    assert certificates.problem == ""
    assert certificates.context is not context


def test_an_encrypted_key_is_rejected_and_not_asked_for(tmp_path: Path) -> None:
    """A key with a password is rejected, since a worker has no terminal to ask for it."""

    certificate, key = Authority().server().put(tmp_path, "server")
    locked = load_pem_private_key(key.read_bytes(), None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    key.write_bytes(locked)
    with pytest.raises(ConfigurationError, match="unencrypted PEM private key"):
        Certificates(TlsFiles(str(certificate), str(key), "", True))
    with pytest.raises(ConfigurationError, match="unencrypted PEM key"):
        tls_context(None, certificate, key)
    with pytest.raises(ConfigurationError, match="Keys are unencrypted PEM"):
        KafkaSecurity(protocol="SSL", cert_file=str(certificate), key_file=str(key)).settings()


def test_the_expiry_of_a_certificate_is_read(tmp_path: Path) -> None:
    """The first certificate of a file counts, also where a key stands before it, and of authorities the last to expire.

    A file without any has no expiry.
    """
    Authority().server(until=9 * DAY).put(tmp_path, "server")
    certificate, key = (tmp_path / "server.pem").read_bytes(), (tmp_path / "server-key.pem").read_bytes()
    (tmp_path / "both.pem").write_bytes(key + certificate)
    ends_s = x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()
    assert expiry_s(tmp_path / "server.pem") == expiry_s(tmp_path / "both.pem") == ends_s
    Authority().server(until=5 * DAY).put(tmp_path, "other")
    (tmp_path / "bundle.pem").write_bytes((tmp_path / "other.pem").read_bytes() + certificate)
    assert expiry_s(tmp_path / "bundle.pem", authorities=True) == ends_s
    assert expiry_s(tmp_path / "server-key.pem") is None
    assert expiry_s(tmp_path / "missing.pem") is None


def test_a_clients_files_are_named(tmp_path: Path) -> None:
    """A missing or malformed client file raises an error with the file's name."""
    certificate, key = Authority().client().put(tmp_path, "client")
    assert tls_context(Authority().put(tmp_path / "ca.pem"), certificate, key).verify_mode is ssl.CERT_REQUIRED
    (tmp_path / "garbage").write_text("garbage")
    for wrong in (tmp_path / "missing", tmp_path / "garbage"):
        for files in ((wrong, None, None), (None, wrong, key), (None, certificate, wrong)):
            with pytest.raises(ConfigurationError, match=str(wrong)):
                tls_context(*files)
    with pytest.raises(ConfigurationError, match="without its certificate"):
        tls_context(None, None, key)
