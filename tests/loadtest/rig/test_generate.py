"""Tests that the generated load is valid: the notary's own code decodes and verifies it here, and had no part in making it."""

import asyncio
import os
import signal
from itertools import islice

import pytest

from loadtest.rig.generate import Ahead, party_key_pem, payload_values, steps, submissions
from loadtest.rig.signing import NOTARY, PARTY
from notary.party_keys import load_public_key, verifier
from payload import decode_requests, decode_submission, signed_message


@pytest.mark.parametrize(
    ("requests", "inputs", "party"), [(1, 1, PARTY), (1, 4, PARTY), (7, 4, "O=Another Party,L=Paris,C=FR"), (1, 1_000, PARTY)]
)
def test_submissions_decode_and_verify(requests: int, inputs: int, party: str) -> None:
    """Every submission passes the notary's own decoder and signature check, has the ids that it claims, and is logged as it was sent."""
    verify = verifier(load_public_key(party_key_pem(party), "the bench"))
    for made in islice(submissions(1, requests, inputs, party=party), 3):
        submission = decode_submission(made.body, NOTARY)
        ids = [request.transaction_id for request in submission.requests]
        assert submission.party == party
        assert b"".join(ids) == made.ids
        assert submission.encoded == made.body
        assert [len(request.inputs) for request in submission.requests] == [inputs] * requests
        assert verify(submission.signature, signed_message(NOTARY, party, ids))


def test_the_same_seed_gives_the_same_bytes() -> None:
    """Two generators of one seed agree to the byte, signatures included; another seed gives others."""
    first, again, other = (list(islice(submissions(seed, 2, 4), 5)) for seed in (7, 7, 8))
    assert first == again
    assert not {made.ids for made in first} & {made.ids for made in other}


def test_no_state_is_asked_for_twice() -> None:
    """All states of one load differ, so that every request can commit."""
    requests = [request for made in islice(submissions(1, 10, 4), 20) for request in decode_submission(made.body, NOTARY).requests]
    states = [state for request in requests for state in request.inputs]
    assert len(states) == len(set(states)) == 800


@pytest.mark.parametrize("submission_requests", [1, 10])
def test_payload_values_decode(submission_requests: int) -> None:
    """A payload record is within its size, decodes in the joiner, and has the ids of its entry."""
    for value in islice(payload_values(1, submission_requests, 4, 50_000), 3):
        assert len(value.value) <= 50_000 + 100
        assert tuple([request.transaction_id for request in decode_requests(value.value, NOTARY)]) == value.ids


def test_steps_are_ordered_batches() -> None:
    """Steps have sorted states and rising sequences, as the joiner emits them."""
    first, second = islice(steps(1, 5, 4), 2)
    assert [batch.sequence for ready in (first, second) for batch in ready.batches] == [1, 2]
    for request in first.batches[0].requests:
        assert list(request.inputs) == sorted(set(request.inputs))
        assert len(request.inputs) == 4


# ---- ahead, by another process ----


@pytest.mark.seconds
async def test_submissions_made_elsewhere_are_the_same() -> None:
    """Submissions from the other process are exactly those that this one would make."""
    async with Ahead.of(7, 3, 2, 20) as ahead:
        await ahead.filled()
        taken = [ahead.take() for _ in range(20)]
        assert taken == list(islice(submissions(7, 3, 2), 20))
        assert (ahead.take(), ahead.left) == (None, 0)


@pytest.mark.seconds
async def test_a_maker_that_ends_early_is_noticed() -> None:
    """The end of the process that makes submissions is noticed, so that nothing waits for more."""
    async with Ahead.of(7, 100, 2, 10_000_000) as ahead:
        await ahead.filled()
        os.kill(ahead.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while not ahead.problem:
                ahead.take()
                await asyncio.sleep(0)
        assert "ended" in ahead.problem
