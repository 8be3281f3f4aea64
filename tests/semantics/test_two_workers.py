"""Tests that two workers on one log act as one notary (R6, R7)."""

import asyncio

import pytest

from tests.clients.load import Load
from tests.clients.party import spend, state
from tests.kafka.workers import Notary

# An embedded log has one worker.
pytestmark = [pytest.mark.kafka, pytest.mark.parametrize("notary", ["kafka"], indirect=True)]


async def test_retry_at_the_other(notary: Notary) -> None:
    """A decision of one worker is answered by the other too, byte for byte, and each client sees all earlier answers at either."""
    a, b = await notary.start_all("a", "b")
    for number in range(10):
        submission = notary.party.submission(spend(state(str(number // 2)), content=str(number)))
        first = await notary.client.answered(a.url, submission)
        again = await notary.client.answered(b.url, submission)
        assert (first.status, again.status, again.body) == (200, 200, first.body)
        a, b = b, a
    await notary.check(a, b)


async def test_one_of_many_concurrent_spends_commits(notary: Notary) -> None:
    """Exactly one of many clients that consume one state at once at both workers commits."""
    a, b = await notary.start_all("a", "b")
    submissions = [notary.party.submission(spend(state("x"), content=str(number))) for number in range(40)]
    urls = [a.url, b.url]
    answers = await asyncio.gather(
        *(notary.client.decide(urls[:: 1 if number % 2 else -1], submission) for number, submission in enumerate(submissions))
    )
    assert [decision["outcome"] for (decision,) in answers].count("committed") == 1
    await notary.check(a, b)


async def test_same_submission_at_both(notary: Notary) -> None:
    """A submission sent to both workers at once is decided once, with the same answer from both."""
    a, b = await notary.start_all("a", "b")
    submissions = [notary.party.submission(spend(state(str(number)))) for number in range(20)]
    returned = await asyncio.gather(*(notary.client.decide([worker.url], submission) for submission in submissions for worker in (a, b)))
    assert returned[0::2] == returned[1::2]
    assert len(await notary.check(a, b)) == 20


async def test_look_ups_agree(notary: Notary) -> None:
    """Under load at both, the look-ups of both finally agree on every transaction and state, and the indexes agree row by row."""
    a, b = await notary.start_all("a", "b")
    async with Load(notary.client, notary.party, [a.url, b.url], seed=7) as load:
        await load.until(200)
    await notary.same_height(a, b)
    for submission in notary.history.submissions[::5]:
        states = [each for request in submission.requests for each in request["inputs"]]
        for path in [f"/v1/transactions/{id_}" for id_ in submission.ids] + [f"/v1/states/{each}" for each in states]:
            first, second = await notary.http.get(a.url, path), await notary.http.get(b.url, path)
            assert (first.status, first.body) == (second.status, second.body) == (200, first.body)
    await notary.check(a, b)
