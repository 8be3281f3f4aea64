"""Tests the file of the parties' keys, and signatures that one of them verifies."""

import json
from pathlib import Path

import pytest

from spark_join.errors import CouldNotVerify
from spark_join.order.payloads import Reader
from spark_join.order.signatures import Signatures, read_keys
from tests.asking.party import Party, spend, state
from tests.checkers.signed_log import NOTARY


def test_keys_that_a_party_has_had(tmp_path: Path) -> None:
    """A party has one key, as in the notary's own file, or several: a signature by any of them is valid."""
    now, before, other = Party(NOTARY), Party(NOTARY), Party(NOTARY, name="O=Bank B")
    pem = {party: party.public_pem.decode() for party in (now, before, other)}
    (tmp_path / "parties.json").write_text(json.dumps({now.name: [pem[now], pem[before]], other.name: pem[other]}))
    signatures = Signatures(NOTARY, read_keys(tmp_path / "parties.json"))
    parties = (now, before, other, Party(NOTARY), Party(NOTARY, name="O=Nobody"))
    told = [Reader(NOTARY).read(b"[" + party.submission(spend(state("x"))).body + b"]") for party in parties]
    assert [signatures.fault(read[0]) for read in told if read] == [None, None, None, "bad-signature", "unknown-party"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"O=A": []}, "the key of 'O=A' cannot be used: there is none"),
        ({"O=A": ["no key"]}, "the key of 'O=A' cannot be used: "),
        ({"O=A": "no key"}, "the key of 'O=A' cannot be used: "),
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
