"""The service's TLS: version 1.3 only, with a certificate that is read again when its files change.

A renewal replaces the files, one after the other or both at once, without a signal to this process. So the process checks them every
second, and loads them when two checks in a row found the same files. Open connections keep their old certificate. Files that do not match,
or whose certificate is not valid now, are reported and not used.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from cryptography import x509

from notary.access import read_secret, why_unreadable
from ordering.errors import ConfigurationError

logger = logging.getLogger("notary.tls")

CHECK_S: Final = 1.0
_NONE_MADE: Final = "The issuer of the service's certificates makes it: see docs/configuration.md, `[http]`"
_NO_PASSWORD: Final = b""

_State: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]


class TlsFiles(msgspec.Struct, frozen=True):
    """The files of the service's certificate, its key, and its clients' authorities. Without authorities, clients show no certificate."""

    cert_file: str
    key_file: str
    client_ca_file: str
    client_cert_required: bool


class Certificates:
    """The TLS context for new connections, from the last files that could be used."""

    def __init__(self, files: TlsFiles, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Raises `ConfigurationError` for files that cannot be used."""
        self._files = files
        self._now = now
        self.problem = ""
        """The reason why the present files are not used; empty when they are used."""
        self.handshakes_failed = 0
        """Connections that ended before their first request: no TLS 1.3, no accepted certificate, or closed too early."""
        self.when_handshake_failed: Callable[[], None] = lambda: None
        self._checked = self._in_use = self._state()
        self._reported: _State | None = None
        self.context, self._not_after = self._load()

    @property
    def not_after_s(self) -> float:
        """The expiry of the certificate in use, in seconds since 1970."""
        return self._not_after.timestamp()

    def handshake_failed(self, problem: BaseException) -> None:
        """Count a connection that failed before its first request. The log line has level debug: unknown clients must not fill the log."""
        self.handshakes_failed += 1
        logger.debug("a TLS handshake failed error=%s", problem)
        self.when_handshake_failed()

    async def follow(self) -> None:
        """Call `check` every second, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                self.check()
            except Exception:  # a bug, or a certificate that a library cannot handle: later files must still be checked
                logger.exception("the certificate's files cannot be checked")

    def check(self) -> None:
        """Load the files if they have changed, but not since the last look. An expired certificate is reported."""
        state = self._state()
        settled, self._checked = state == self._checked, state
        if settled and (state != self._in_use or self.problem or self._now() > self._not_after):
            self._take(state)

    def read_again(self) -> None:
        """Load the present files, and log the result."""
        self._reported = None
        self._take(self._state(), report_all=True)

    def _take(self, state: _State, *, report_all: bool = False) -> None:
        """Load the files. On an error the certificate in use stays; the error is logged once for each version of the files."""
        try:
            self.context, self._not_after = self._load()
        except ConfigurationError as problem:
            self.problem = str(problem)
            if state != self._reported:
                self._reported = state
                logger.warning("the new certificate is rejected, the present one stays in use: %s", problem)
            return
        if report_all or state != self._in_use or self.problem:
            logger.info("certificate read file=%s not_after=%s", self._files.cert_file, self._not_after.isoformat())
        self.problem, self._in_use, self._reported = "", state, None

    def _state(self) -> _State:
        """Returns inode, size and times of each file (None for a missing one), which change when a file is replaced."""

        def of(file: str) -> tuple[int, int, int, int] | None:
            try:
                status = os.stat(file)
            except OSError:
                return None
            return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

        return tuple(of(file) for file in (self._files.cert_file, self._files.key_file, self._files.client_ca_file) if file)

    def _load(self) -> tuple[ssl.SSLContext, datetime]:
        """Loads the files into a new context, so that a failure does not change the one in use. Raises `ConfigurationError`."""
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Without tickets each connection is a full handshake, so the client's certificate is verified every time.
        context.num_tickets = 0
        context.set_alpn_protocols(["http/1.1"])
        not_after = self._check_dates(_certificate(files.cert_file))
        read_secret(Path(files.key_file), "the service's TLS key", _NONE_MADE)
        try:
            context.load_cert_chain(files.cert_file, files.key_file, lambda: _NO_PASSWORD)
        except (OSError, ValueError) as problem:  # an `SSLError` is an OSError
            if getattr(problem, "reason", "") == "KEY_VALUES_MISMATCH":
                why = "is not the key of this certificate. Name the key that it was issued for"
            else:
                why = f"cannot be used with it ({problem}). It should be an unencrypted PEM private key, RSA, ECDSA or Ed25519"
            raise ConfigurationError(f"certificate {files.cert_file}: the key {files.key_file} {why}") from None
        if files.client_ca_file:
            try:
                context.load_verify_locations(files.client_ca_file)
            except ssl.SSLError as problem:
                raise ConfigurationError(
                    f"the client CA file {files.client_ca_file} has no PEM certificates ({problem}). Put there those of the CAs that issue"
                    " your clients' certificates"
                ) from None
            except OSError as problem:
                raise _unreadable("client CA file", files.client_ca_file, problem) from None
            context.verify_mode = ssl.CERT_REQUIRED if files.client_cert_required else ssl.CERT_OPTIONAL
        return context, not_after

    def _check_dates(self, certificate: x509.Certificate) -> datetime:
        since, until, now = certificate.not_valid_before_utc, certificate.not_valid_after_utc, self._now()
        if not since <= now <= until:
            raise ConfigurationError(
                f"the certificate {self._files.cert_file} is valid from {since.isoformat()} to {until.isoformat()}, and this machine's"
                f" clock says {now.isoformat(timespec='seconds')}. Put a renewed certificate there, with its key, or correct the clock"
            )
        return until


def expiry_s(file: Path, *, authorities: bool = False) -> float | None:
    """Returns the expiry of the first certificate of a file, in seconds since 1970; None if there is none that can be read.

    With `authorities` the last expiry: a file has the former and the next one for a time.
    """
    try:
        ends_s = [each.not_valid_after_utc.timestamp() for each in x509.load_pem_x509_certificates(file.read_bytes())]
        return max(ends_s) if authorities else ends_s[0]
    except (OSError, ValueError, x509.InvalidVersion):
        return None


def _certificate(file: str) -> x509.Certificate:
    """Reads the first certificate of the file, the service's own; its issuers' follow it. Raises `ConfigurationError`."""
    try:
        return x509.load_pem_x509_certificates(Path(file).read_bytes())[0]
    except OSError as problem:
        raise _unreadable("certificate", file, problem) from None
    except (ValueError, x509.InvalidVersion) as problem:
        raise ConfigurationError(
            f"the certificate {file} is no PEM certificate ({problem}). The file holds the service's own first, then those of its issuers"
        ) from None


def _unreadable(what: str, file: str, problem: OSError) -> ConfigurationError:
    return ConfigurationError(f"cannot read the service's TLS {what} {file}: {why_unreadable(Path(file), problem, _NONE_MADE)}")
