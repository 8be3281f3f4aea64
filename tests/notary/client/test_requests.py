"""A submission's bytes match the contract's own examples; many requests are split into submissions."""

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from notary.client import Signer, TimeWindow, TransactionRequest, submissions, transaction_ids
from notary.client.requests import prepare
from ordering.errors import ConfigurationError, Malformed
from payload import decode_submission
from tests.notary.client.scripted import NAME, PARTY, PEM, request

VECTORS = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())
PKCS8 = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)


def pem_of(key: Any, password: bytes | None = None) -> bytes:
    encryption = serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    pem: bytes = key.private_bytes(*PKCS8, encryption)
    return pem


def test_ids_are_those_of_the_contract() -> None:
    """The worked examples' requests have the worked examples' ids."""
    requests = [each["request"] for each in VECTORS["requests"]]
    assert list(transaction_ids(requests, VECTORS["notary"])) == [each["transaction_id"] for each in VECTORS["requests"]]


@pytest.mark.parametrize("submission", VECTORS["submissions"])
def test_what_is_signed_is_the_contracts_message(submission: dict[str, Any]) -> None:
    """The signed message equals the worked example's, whose signature verifies with the party's key; so does ours."""
    signed: list[bytes] = []
    key = ed25519.Ed25519PrivateKey.generate()

    def sign(message: bytes) -> bytes:
        signed.append(message)
        return key.sign(message)

    # The examples list requests by their number among all requests, or as objects.
    requests = [VECTORS["requests"][each]["request"] if isinstance(each, int) else each for each in submission["requests"]]
    body = prepare(requests, VECTORS["notary"], VECTORS["party"], Signer(sign)).body
    assert signed[0].hex() == submission["message_hex"]
    example = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(VECTORS["party_public_key_hex"]))
    example.verify(b64decode(submission["signature"]), signed[0])
    key.public_key().verify(decode_submission(body, VECTORS["notary"]).signature, signed[0])


def test_a_typed_request_is_the_same_request() -> None:
    """A typed request and a mapping have the same ids, with open ends or without a window."""
    state = request(1)["inputs"][0]
    typed: list[TransactionRequest] = [
        TransactionRequest(inputs=[state], content_hash="00" * 32),
        TransactionRequest(references=(state,), time_window=TimeWindow(until_ms=5), content_hash="00" * 32),
    ]
    plain: list[dict[str, Any]] = [
        {"inputs": [state], "content_hash": "00" * 32},
        {"references": [state], "time_window": {"from": None, "until": 5}, "content_hash": "00" * 32},
    ]
    assert transaction_ids(typed, NAME) == transaction_ids(plain, NAME)


def test_a_party_with_any_characters_is_encoded() -> None:
    """Quotes and other scripts in a party's name are encoded correctly."""
    party = 'O="Bänk" \\ 銀行'
    assert decode_submission(prepare([request(1)], NAME, party, Signer.from_pem(PEM)).body, NAME).party == party


def test_submissions_cut_by_count_and_by_bytes() -> None:
    """Lists respect the limits of requests and bytes, in order; a request that is too large forms a list alone."""
    requests = [request(number) for number in range(7)]
    assert [len(each) for each in submissions(requests, 3)] == [3, 3, 1]
    assert [each for batch in submissions(requests, 3) for each in batch] == requests
    size = len(json.dumps(requests[0], separators=(",", ":"))) + 1
    assert [len(each) for each in submissions(requests, 100, 2 * size)] == [2, 2, 2, 1]
    assert [len(each) for each in submissions(requests, 100, 2 * size - 2)] == [1] * 7, "two have a comma between them"
    assert [len(each) for each in submissions(requests, 100, 1)] == [1] * 7
    assert list(submissions([])) == []


def test_submissions_take_no_more_than_they_must() -> None:
    """A full list is returned at once, before the next request is read."""
    taken: list[int] = []

    def endless() -> Iterator[dict[str, Any]]:
        number = 0
        while True:
            taken.append(number)
            yield request(number)
            number += 1

    next(submissions(endless(), 3))
    assert taken == [0, 1, 2]


def test_the_largest_batch_fits_a_submission() -> None:
    """The largest default batch fits the contract's limit, with the longest party's name, escaped."""
    large = [TransactionRequest(inputs=[f"{'ab' * 32}:{at}" for at in range(9_000)], content_hash=f"{n:064x}") for n in range(5)]
    for batch in submissions(large):
        prepare(batch, NAME, "\x01" * 255, Signer.from_pem(PEM))


def test_a_submission_over_the_limit_is_rejected() -> None:
    """More than 1,000 requests raise `Malformed` in the client."""
    with pytest.raises(Malformed, match="1001 requests"):
        prepare([request(number) for number in range(1001)], NAME, PARTY, Signer.from_pem(PEM))


def test_both_kinds_of_key_sign() -> None:
    """Ed25519 and ECDSA P-256 keys from PEM, encrypted or not, make valid signatures."""
    edwards, elliptic = ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())
    edwards.public_key().verify(Signer.from_pem(pem_of(edwards, b"secret"), b"secret").sign(b"message"), b"message")
    elliptic.public_key().verify(Signer.from_pem(pem_of(elliptic)).sign(b"message"), b"message", ec.ECDSA(hashes.SHA256()))


def test_keys_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """A missing, foreign, encrypted or malformed key is a configuration error that names the file and the remedy."""
    edwards = ed25519.Ed25519PrivateKey.generate()
    keys = {
        "not a PEM private key": b"nonsense",
        "is encrypted": pem_of(edwards, b"secret"),
        "on the curve secp384r1": pem_of(ec.generate_private_key(ec.SECP384R1())),
        "of type RSAPrivateKey": pem_of(rsa.generate_private_key(65537, 2048)),
    }
    for number, (what, pem) in enumerate(keys.items()):
        (tmp_path / f"{number}.pem").write_bytes(pem)
        (tmp_path / f"{number}.pem").chmod(0o600)
        with pytest.raises(ConfigurationError, match=rf"{number}\.pem.*{what}"):
            Signer.from_file(tmp_path / f"{number}.pem")
    with pytest.raises(ConfigurationError, match=r"cannot read the key .*missing\.pem"):
        Signer.from_file(tmp_path / "missing.pem")
    with pytest.raises(ConfigurationError, match="not encrypted"):
        Signer.from_pem(PEM, b"secret")
    with pytest.raises(ConfigurationError, match="password is another"):
        Signer.from_pem(keys["is encrypted"], b"wrong")
