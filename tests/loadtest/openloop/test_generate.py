"""Tests the requests of a load: signed to the byte as a party signs, and marked where conflicts are possible."""

import json
from collections import Counter
from io import BytesIO
from random import Random

import pytest

from loadtest.openloop.generate import drawing
from loadtest.openloop.plan import Distribution, Mix
from loadtest.openloop.process import read_next, write
from loadtest.rig.generate import party_key
from loadtest.rig.signing import NOTARY, PARTY
from tests.clients.party import Party
from tests.loadtest.openloop.honest import asked


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


def test_marks_say_all_that_can_happen() -> None:
    """A state in two requests is marked in each, as are all references and windows; an unmarked state occurs once."""
    named: Counter[str] = Counter()
    requests = []
    for one in {one.body: one for one in asked(300)}.values():
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
    first = [json.loads(body)["requests"][0] for body in dict.fromkeys([one.body for one in made])]
    spent = Counter([state for request in first for state in request["inputs"]])
    assert 1 - len(first) / len(made) == pytest.approx(0.25, rel=0.2)
    assert sum([count - 1 for count in spent.values()]) / len(first) == pytest.approx(0.1, rel=0.25)
    assert sum(["references" in request for request in first]) / len(first) == pytest.approx(0.2, rel=0.2)
    assert sum(["time_window" in request for request in first]) / len(first) == pytest.approx(0.3, rel=0.2)


def test_only_what_is_marked_is_repeated() -> None:
    """A submission is sent at most twice, to the byte, and only if it is marked so."""
    made = asked(200)
    times = Counter([one.body for one in made])
    assert all(times[one.body] == 1 or (times[one.body] == 2 and one.twice) for one in made)
    assert 2 in times.values()


@pytest.mark.parametrize("distribution", ["fixed", "poisson", "uniform", "geometric"])
@pytest.mark.parametrize("mean", [1.0, 4.0, 2.5, 80.0])
def test_distributions_have_their_mean(distribution: Distribution, mean: float) -> None:
    """Each distribution has the requested mean, and no request is without inputs."""
    draw = drawing(distribution, mean, Random(1))
    drawn = [draw() for _ in range(4_000)]
    assert min(drawn) >= 1
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.06)


@pytest.mark.parametrize("missing", [1, 5, 8])
def test_a_record_that_is_cut_is_the_end(missing: int) -> None:
    """A process that is killed may leave a part of a record: that is the end of its output, like no record."""
    file = BytesIO()
    write(file, {"made": True})
    complete = file.getvalue()
    assert read_next(BytesIO(complete)) == {"made": True}
    assert read_next(BytesIO(complete[:-missing])) is None
