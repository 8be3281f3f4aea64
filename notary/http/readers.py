"""The access check for reads, where only parties may read decisions (docs/http.md, Access to reads)."""

import contextlib
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from notary.http.call import Call
from notary.http.problems import NotAParty
from notary.http.settings import HttpSettings
from notary.parties import Parties
from ordering.errors import Malformed
from ordering.ids import excerpt
from ordering.records import SIGNATURE_BYTES
from payload.signed_read import SignedRead, read_signature

SKEW_S: Final = 300
"""A signature is valid from this many seconds before its time `created` to as many after it, by this worker's clock."""


class Readers:
    """The access check of one worker or acceptor process."""

    def __init__(self, notary_name: str, parties: Parties, clock_ms: Callable[[], int]) -> None:
        self._notary_name = notary_name
        self._parties = parties
        self._clock_ms = clock_ms

    @classmethod
    def of(cls, http: HttpSettings, notary_name: str, parties: Parties, clock_ms: Callable[[], int]) -> "Readers | None":
        """Returns the check; None if the configuration lets everybody read."""
        return cls(notary_name, parties, clock_ms) if http.reads == "parties" else None

    def check(self, call: Call) -> None:
        """Raise `NotAParty` unless a party makes this call.

        A wrong signature is rejected even with a good certificate: otherwise the sender would not notice the mistake.
        """
        try:
            signed = read_signature(call.headers)
        except Malformed as problem:
            raise self._rejection(f"the signature cannot be read: {problem}") from None
        if signed is not None:
            self._check_signature(call, signed)
            return
        certificate = call.certificate()
        if certificate is None:
            raise self._rejection("only parties may read this")
        subject, key = _read(certificate)
        if key is None or not self._parties.has_key(key):
            raise self._rejection(f"the certificate of {excerpt(subject, 300)} has a key that is not the key of a registered party")

    def _rejection(self, why: str) -> NotAParty:
        return NotAParty(why, self._notary_name)

    def _check_signature(self, call: Call, signed: SignedRead) -> None:
        if signed.notary_name != self._notary_name:
            raise self._rejection(f"the signature is for the notary {excerpt(signed.notary_name, 300)}, and this is {self._notary_name}")
        now_s = self._clock_ms() // 1000
        expires_s = signed.created_s + SKEW_S if signed.expires_s is None else min(signed.expires_s, signed.created_s + SKEW_S)
        if not signed.created_s - SKEW_S <= now_s <= expires_s:
            raise self._rejection(
                f"the signature was made at {signed.created_s} and is valid until {expires_s}, and this worker's clock shows {now_s}:"
                " correct the clock that is wrong, and sign each call anew"
            )
        party = self._parties.get(signed.party)
        if party is None:
            raise self._rejection(f"the party {excerpt(signed.party, 300)} is not registered with this notary")
        message = signed.message(call.method, call.raw_path, call.query.decode("latin-1"))
        algorithm = "ed25519" if party.is_ed25519 else "ecdsa-p256-sha256"
        if signed.algorithm not in (None, algorithm):
            raise self._rejection(f"the signature says alg {signed.algorithm}, and the party's key is for {algorithm}")
        signature = signed.signature if party.is_ed25519 else _der(signed.signature)
        if len(signed.signature) != SIGNATURE_BYTES or not party.verify(signature, message):
            raise self._rejection("the signature is not this party's over this method, path and query")


def _der(signature: bytes) -> bytes:
    """Returns an ECDSA signature in DER, which the check needs. In RFC 9421 it is two numbers of 32 bytes each."""
    return encode_dss_signature(int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big"))


@lru_cache(1_024)
def _read(certificate: bytes) -> tuple[str, bytes | None]:
    """Returns the subject of a certificate, and its public key as `Parties.has_key` takes it; None for a key that cannot be read."""
    subject, key = "an unknown subject", None
    with contextlib.suppress(ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
        read = x509.load_der_x509_certificate(certificate)
        key = read.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        subject = read.subject.rfc4514_string() or "no subject"  # last: subjects of old authorities may not be readable
    return subject, key
