"""Load from a seed: the same seed gives the same bytes.

Every state is new and every content hash is random, so every request commits.
"""

from collections.abc import Iterator
from hashlib import sha256
from random import Random

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from joiner import OrderedBatch, Ready
from loadtest.rig.signing import NOTARY, PARTY, Made, SubmissionSigner
from ordering.log import ORDERING
from payload import OPEN_FROM_MS, OPEN_UNTIL_MS, Request


class PayloadValue(msgspec.Struct, frozen=True, gc=False):
    """A payload record's value and the transaction ids of all its requests, in order."""

    value: bytes
    ids: tuple[bytes, ...]


def party_key() -> Ed25519PrivateKey:
    """Returns the key that signs every submission, whatever its seed: it is registered once, for many loads."""
    return Ed25519PrivateKey.from_private_bytes(sha256(b"loadtest.bench party").digest())


def party_key_pem() -> bytes:
    """Returns its public key in PEM, as `notary party add` takes it."""
    return party_key().public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def submissions(seed: int, requests: int, inputs: int, *, signed: bool = True) -> Iterator[Made]:
    """Yields submissions without end. Unsigned ones have random bytes for signatures: replay does not verify them."""
    random = Random(seed)
    writer = SubmissionSigner(NOTARY, PARTY, party_key().sign if signed else lambda message: random.randbytes(64))
    texts, ids = [""] * requests, [b""] * requests
    while True:
        for at in range(requests):
            # The content hash, then the transaction hashes of the states.
            drawn = random.randbytes(32 * (inputs + 1))
            states = sorted([drawn[start : start + 32] + b"\0\0\0\x01" for start in range(32, len(drawn), 32)])
            texts[at], ids[at] = writer.request(states, drawn[:32])
        yield writer.submission(texts, ids)


def payload_values(
    seed: int, submission_requests: int, inputs: int, batch_bytes_max: int, *, signed: bool = False
) -> Iterator[PayloadValue]:
    """Yields payload records without end, each with as many submissions as fit, at least one."""
    bodies: list[bytes] = []
    ids: list[bytes] = []
    size = 0
    for made in submissions(seed, submission_requests, inputs, signed=signed):
        if bodies and size + len(made.body) > batch_bytes_max:
            yield PayloadValue(b"[" + b",".join(bodies) + b"]", tuple(ids))
            bodies, ids, size = [], [], 0
        bodies.append(made.body)
        ids += [made.ids[start : start + 32] for start in range(0, len(made.ids), 32)]
        size += len(made.body)


def steps(seed: int, requests: int, inputs: int) -> Iterator[Ready]:
    """Yields steps as the joiner passes them to the index, without end: each has one batch of `requests` decoded requests."""
    random = Random(seed)
    sequence = 0
    while True:
        made = []
        for _ in range(requests):
            drawn = random.randbytes(36 * inputs + 64)
            states = tuple(sorted([drawn[start : start + 36] for start in range(64, len(drawn), 36)]))
            made.append(Request(drawn[:32], states, (), OPEN_FROM_MS, OPEN_UNTIL_MS, drawn[32:64]))
        sequence += 1
        batch = OrderedBatch(sequence, 1, sequence, 1_760_000_000_000 + sequence, False, tuple(made))
        yield Ready({ORDERING: sequence + 1, 0: sequence}, batch.log_time_ms, advanced=True, batches=[batch])
