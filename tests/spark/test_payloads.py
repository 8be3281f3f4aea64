"""Tests that the second decoder of payload values is as strict as the others, and the check of signatures with the parties' keys."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given

from spark_join.errors import CouldNotVerify
from spark_join.order.payloads import PayloadDecoder, Signatures, read_keys
from tests.checkers.requests import requests_of
from tests.checkers.signed_log import NOTARY
from tests.checkers.test_requests import GARBAGE, LIMITS, SHARED, VALUE, altered
from tests.clients.party import Party, spend, state
from tests.notary.party import Bank
from tests.notary.test_parties import of_no_version

READER = PayloadDecoder(NOTARY)


def _read(value: bytes) -> list[tuple[str, int]] | None:
    found = READER.read(value)
    return None if found is None else [(request.id.hex(), len(request.inputs)) for each in found for request in each.requests]


def _expected(value: bytes) -> list[tuple[str, int]] | None:
    found = requests_of(value, NOTARY)
    return None if found is None else [(id_, len(request.get("inputs", ()))) for id_, request in found]


def test_good_value_is_read() -> None:
    """The unaltered value is decoded."""
    assert _read(VALUE) == _expected(VALUE)
    assert len(_read(VALUE) or ()) == 3


@SHARED
@given(altered())
def test_altered_value_is_read_alike(value: bytes) -> None:
    """For an altered value both decoders return the same requests, or both reject it."""
    assert _read(value) == _expected(value)


@pytest.mark.parametrize(("batch", "read"), LIMITS)
def test_limits_are_alike(batch: object, read: bool) -> None:
    """At each limit of the contract the value is decoded or rejected as it should be."""
    value = json.dumps(batch).encode()
    assert (_read(value) is not None) == read
    assert _read(value) == _expected(value)


def test_a_signature_has_one_text() -> None:
    """Base64 whose last bits are not 0 decodes to the same bytes, and is malformed, for both decoders."""
    for text, is_read in (("QQ==", True), ("QR==", False)):
        value = json.dumps([{**json.loads(VALUE)[0], "signature": text}]).encode()
        assert [_read(value) is not None, _expected(value) is not None] == [is_read, is_read]


def test_no_other_curve_is_checked() -> None:
    """A party's key on another curve than P-256 is refused."""
    key = ec.generate_private_key(ec.SECP384R1()).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(ValueError, match="P-256"):
        Signatures(NOTARY, {"p": key.decode()})


@pytest.mark.parametrize("value", GARBAGE)
def test_garbage_is_none(value: bytes) -> None:
    """Bytes that are no batch at all decide nothing, and stop nothing."""
    assert READER.read(value) is None


def test_keys_that_a_party_has_had(tmp_path: Path) -> None:
    """A party has one key, as in the notary's own file, or several: a signature by any of them is valid."""
    now, before, other = Party(NOTARY), Party(NOTARY), Party(NOTARY, name="O=Bank B")
    pem = {party: party.public_pem.decode() for party in (now, before, other)}
    (tmp_path / "parties.json").write_text(json.dumps({now.name: [pem[now], pem[before]], other.name: pem[other]}))
    signatures = Signatures(NOTARY, read_keys(tmp_path / "parties.json"))
    parties = (now, before, other, Party(NOTARY), Party(NOTARY, name="O=Nobody"))
    returned = [PayloadDecoder(NOTARY).read(b"[" + party.submission(spend(state("x"))).body + b"]") for party in parties]
    assert [signatures.fault(read[0]) for read in returned if read] == [None, None, None, "bad-signature", "unknown-party"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"O=A": []}, "the key of 'O=A' cannot be used: there is none"),
        ({"O=A": ["no key"]}, "the key of 'O=A' cannot be used: "),
        ({"O=A": "no key"}, "the key of 'O=A' cannot be used: "),
        ({"O=A": of_no_version(Bank())}, "the key of 'O=A' cannot be used: 3 is not a valid X509 version"),
        ({"O=A": {"key": "x"}}, "should be a JSON object of party name -> PEM public key, or a list of such keys"),
    ],
)
def test_keys_that_cannot_be_used(tmp_path: Path, content: object, message: str) -> None:
    """The message names the file and the party."""
    file = tmp_path / "parties.json"
    file.write_text(json.dumps(content))
    with pytest.raises(CouldNotVerify, match=message) as raised:
        read_keys(file)
    assert str(file) in str(raised.value)
