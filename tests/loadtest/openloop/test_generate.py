"""Tests the requests of a load: signed to the byte as a party signs, and marked where conflicts are possible."""

import json
from collections import Counter
from contextlib import closing
from io import BytesIO
from random import Random

import pytest

from loadtest.openloop.generate import drawing
from loadtest.openloop.plan import Distribution, Mix
from loadtest.openloop.process import Pool, read_next, write
from loadtest.rig.generate import party_key
from loadtest.rig.signing import NOTARY, PARTY
from notary.party_keys import verifier
from payload import decode_submission, signed_message
from tests.clients.party import Party
from tests.loadtest.openloop.honest import BUSY, asked


def test_the_same_seed_gives_the_same_bytes() -> None:
    """The same seed gives the same bytes, signatures, marks and repetitions; another seed shares no transaction."""
    assert asked(40) == asked(40)
    assert not {one.ids for one in asked(40)} & {one.ids for one in asked(40, seed="t")}


def test_bodies_are_what_another_party_would_sign() -> None:
    """The ids, and all of the JSON with its signature, are those of a party that was written from the contract alone."""
    party = Party(NOTARY, PARTY, party_key())
    for one in asked(60):
        returned = json.loads(one.body)
        signed = party.submission(*returned["requests"])
        assert bytes.fromhex("".join(signed.ids)) == one.ids
        assert json.loads(signed.body) == returned


def test_workers_take_them() -> None:
    """The worker's own decoder and signature check accept every submission, and would log exactly the bytes that were sent."""
    verify = verifier(party_key().public_key())
    for one in asked(60):
        submission = decode_submission(one.body, NOTARY)
        ids = [request.transaction_id for request in submission.requests]
        assert b"".join(ids) == one.ids
        assert verify(submission.signature, signed_message(NOTARY, PARTY, ids))
        assert submission.encoded == one.body


def test_marks_say_all_that_can_happen() -> None:
    """A state in two requests is marked in each, as are all references and windows; an unmarked state occurs once."""
    named: Counter[str] = Counter()
    requests = []
    for one in asked(300):
        if one.again:
            continue
        for place, request in enumerate(json.loads(one.body)["requests"]):
            named.update(set(request["inputs"]) | set(request.get("references", ())))
            requests.append((request, one.marks.get(place)))
    shared = {state for state, count in named.items() if count > 1}
    assert shared
    for request, marks in requests:
        assert {state for state in request["inputs"] if state in shared} <= set(marks.inputs if marks else ())
        assert request.get("references", []) == list(marks.references if marks else ())
        window = request.get("time_window")
        assert (window and (window["from"], window["until"])) == (marks and marks.window)


def test_shares_are_kept() -> None:
    """The shares of double spends, references, windows and repeated submissions are as requested."""
    mix = Mix(double_spends=0.1, references=0.2, windows=0.3, retries=0.25)
    made = asked(4_000, mix)
    first = [json.loads(one.body)["requests"][0] for one in made if not one.again]
    spent = Counter([state for request in first for state in request["inputs"]])
    assert sum([one.again for one in made]) / len(made) == pytest.approx(0.25, rel=0.2)
    assert sum([count - 1 for count in spent.values()]) / len(first) == pytest.approx(0.1, rel=0.25)
    assert sum(["references" in request for request in first]) / len(first) == pytest.approx(0.2, rel=0.2)
    assert sum(["time_window" in request for request in first]) / len(first) == pytest.approx(0.3, rel=0.2)


def test_a_repetition_is_the_same_bytes() -> None:
    """A repeated submission has the same bytes as the first, which is marked as repeated."""
    seen: dict[bytes, bool] = {}
    for one in asked(200):
        if one.again:
            assert seen.pop(one.body)
        else:
            seen[one.body] = one.twice


def test_without_shares_all_commit() -> None:
    """Without shares nothing is marked, and nothing is sent twice."""
    plain = Mix(submission_requests=5, double_spends=0, references=0, windows=0, retries=0)
    assert not any(one.marks or one.twice for one in asked(50, plain))


@pytest.mark.parametrize("distribution", ["fixed", "poisson", "uniform", "geometric"])
@pytest.mark.parametrize("mean", [1.0, 4.0, 2.5, 80.0])
def test_distributions_have_their_mean(distribution: Distribution, mean: float) -> None:
    """Each distribution has the requested mean, and no request is without inputs."""
    draw = drawing(distribution, mean, Random(1))
    drawn = [draw() for _ in range(4_000)]
    assert min(drawn) >= 1
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.06)


def test_a_pool_gives_back_what_was_put_in() -> None:
    """A pool returns what was put in, in the same order, member for member."""
    made = asked(30, BUSY)
    with closing(Pool()) as pool:
        for one in made:
            pool.add(one)
        pool.rewind()
        assert [pool.take() for _ in made] == made


@pytest.mark.parametrize("missing", [1, 5, 8])
def test_a_record_that_is_cut_is_the_end(missing: int) -> None:
    """A process that is killed may leave a part of a record: that is the end of its output, like no record."""
    file = BytesIO()
    write(file, {"made": True})
    complete = file.getvalue()
    assert read_next(BytesIO(complete)) == {"made": True}
    assert read_next(BytesIO(complete[:-missing])) is None
