"""The certificates of readers."""

import contextlib
import datetime
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from notary.http import readers
from notary.http.call import Call
from notary.http.problems import NotAParty
from notary.http.readers import SKEW_S, Readers
from notary.parties import Parties
from tests.notary.http.test_reads import signed as signed_headers
from tests.notary.http.test_reads import two_numbers
from tests.notary.party import NOTARY, Bank
from tests.notary.process import NotaryDirectory


def test_a_key_is_read_beside_an_unreadable_subject() -> None:
    """A subject in the Latin-1 of old authorities, which cannot be decoded, keeps no party from its reads."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Muxller AG", _type=_ASN1Type.T61String)])
    from_ = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(5)
    made = builder.not_valid_before(from_).not_valid_after(from_ + datetime.timedelta(99)).sign(key, hashes.SHA256())
    expected = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert readers._read(made.public_bytes(Encoding.DER)) == ("CN=Muxller AG", expected)
    odd = made.public_bytes(Encoding.DER).replace(b"Muxller AG", b"M\xfcxller AG")
    assert readers._read(odd) == ("an unknown subject", expected)


P256 = Bank("O=Bank P", p256=True)
NOW_S = 1_800_000_000
PATH = "/v1/states/" + "ab" * 32 + ":0"


@pytest.fixture
def checks(own_directory: NotaryDirectory) -> Readers:
    """The check of a worker that knows this bank; its clock is stopped."""
    own_directory.register(P256)
    http: Any = SimpleNamespace(reads="parties")
    readers = Readers.of(http, NOTARY, Parties(own_directory.path / "parties.json"), lambda: NOW_S * 1000 + 999)
    assert readers is not None
    return readers


def signed(created_s: int, more: str = "", form: Callable[[bytes], bytes] = two_numbers) -> Call:
    """Returns a call that the bank has signed; `form` makes the signature from one in DER."""
    headers = signed_headers(PATH, P256, now_s=created_s, more=more, form=form)
    return Call("GET", PATH, b"", [(name.lower().encode(), value.encode()) for name, value in headers.items()], lambda *_: None)


@pytest.mark.parametrize("more", ["", ';alg="ed25519"'])
def test_der_is_no_signature_of_a_read(checks: Readers, more: str) -> None:
    """A P-256 signature is two numbers of 32 bytes, and `alg` is as the key is."""
    with pytest.raises(NotAParty):
        checks.check(signed(NOW_S, more, bytes))


def test_a_signature_has_one_form(checks: Readers) -> None:
    """A zero in front of the second number does not change it, but nobody writes it."""
    checks.check(signed(NOW_S))
    with pytest.raises(NotAParty):
        checks.check(signed(NOW_S, "", lambda der: (both := two_numbers(der))[:32] + b"\0" + both[32:]))


@pytest.mark.parametrize(
    ("created_s", "expires_s", "counts"),
    [
        (-SKEW_S - 1, None, False),
        (-SKEW_S, None, True),
        (SKEW_S, None, True),
        (SKEW_S + 1, None, False),
        (-9, -1, False),
        (-9, 0, True),
        (-SKEW_S - 1, 9, False),
    ],
)
def test_a_signature_counts_in_its_time_alone(checks: Readers, created_s: int, expires_s: int | None, counts: bool) -> None:
    """From `SKEW_S` before its time on, to as long after it, both included, and to its end at the latest."""
    more = "" if expires_s is None else f";expires={NOW_S + expires_s}"
    with contextlib.nullcontext() if counts else pytest.raises(NotAParty, match="and this worker's clock shows"):
        checks.check(signed(NOW_S + created_s, more))
