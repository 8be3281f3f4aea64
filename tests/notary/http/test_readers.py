"""The certificates of readers."""

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from notary.http import readers


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
