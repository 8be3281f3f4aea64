"""The certificates of readers."""

import base64
import datetime
import time
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

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
from notary.http.readers import Readers
from notary.parties import Parties
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


@pytest.mark.parametrize("more", ["", ';alg="ed25519"'])
def test_der_is_no_signature_of_a_read(own_directory: NotaryDirectory, more: str) -> None:
    """A P-256 signature is two numbers of 32 bytes, and `alg` is as the key is."""
    own_directory.register(P256)
    parties = Parties(own_directory.path / "parties.json")
    http: Any = SimpleNamespace(reads="parties")
    readers = Readers.of(http, NOTARY, parties, lambda: int(time.time() * 1000))
    assert readers is not None
    path = "/v1/states/" + "ab" * 32 + ":0"
    parameters = f'("@method" "@path" "@query");created={int(time.time())};keyid="{quote(P256.name, safe="")}"'
    parameters += f';tag="{quote(NOTARY, safe="")}"{more}'
    der = P256.sign(f'"@method": GET\n"@path": {path}\n"@query": ?\n"@signature-params": {parameters}'.encode())
    headers = [(b"signature-input", f"sig={parameters}".encode()), (b"signature", b"sig=:" + base64.b64encode(der) + b":")]
    call = Call("GET", path, b"", headers, lambda call, answer, after_body: None)
    with pytest.raises(NotAParty):
        readers.check(call)
