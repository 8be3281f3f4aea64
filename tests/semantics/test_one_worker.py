"""Tests the answers of a notary with one worker over HTTP (docs/formats.md, Decision; R7, R8)."""

import asyncio
import hashlib
import signal
import time
from typing import Any

import pytest

from tests.checkers.history import Decided
from tests.clients.load import Client, until
from tests.clients.party import spend, state
from tests.kafka.workers import Notary, Worker

pytestmark = pytest.mark.seconds


async def decide(notary: Notary, worker: Worker, *requests: dict[str, Any]) -> list[Decided]:
    """Submit requests together; returns their decisions."""
    return await notary.client.decide([worker.url], notary.party.submission(*requests))


def hashed(decision: Decided) -> str:
    """Returns the hash by which conflicts name a decision's transaction."""
    return hashlib.sha256(bytes.fromhex(decision["transaction_id"])).hexdigest()


def rejection(decision: Decided) -> tuple[str, str | None, list[tuple[str, str, str]]]:
    """Returns outcome, reason and conflicts."""
    conflicts = [(conflict["state"], conflict["kind"], conflict["consumed_by"]) for conflict in decision["conflicts"]]
    return decision["outcome"], decision["reason"], conflicts


COMMITTED: tuple[str, None, list[tuple[str, str, str]]] = ("committed", None, [])


def now_ms() -> int:
    """Returns the time by this machine's clock, which the brokers share."""
    return time.time_ns() // 1_000_000


async def test_new_states_are_committed(notary: Notary, worker: Worker) -> None:
    """A transaction that consumes new states is committed, and the look-ups agree from then on."""
    submission = notary.party.submission(spend(state("x"), state("y", 7)))
    (id_,) = submission.ids
    assert (await notary.http.get(worker.url, f"/v1/transactions/{id_}")).status == 404
    answer = await notary.client.answered(worker.url, submission)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    (decision,) = answer.json()["decisions"]
    assert (decision["transaction_id"], decision["position"], *rejection(decision)) == (id_, 0, *COMMITTED)
    assert (await notary.http.get(worker.url, f"/v1/transactions/{id_}")).json() == decision
    for each in (state("x"), state("y", 7)):
        returned = (await notary.http.get(worker.url, f"/v1/states/{each}")).json()
        assert returned == {"state": each, "consumed_by": hashed(decision), "position": 0}
    returned = (await notary.http.get(worker.url, f"/v1/states/{state('y', 8)}")).json()
    assert returned == {"state": state("y", 8), "consumed_by": None, "position": None}
    await notary.check(worker)


async def test_a_double_spend_is_rejected(notary: Notary, worker: Worker) -> None:
    """A double spend is rejected, names every consumed input and its consumer, and consumes nothing."""
    (x,) = await decide(notary, worker, spend(state("x")))
    (y,) = await decide(notary, worker, spend(state("y")))
    (double,) = await decide(notary, worker, spend(state("y"), state("fresh"), state("x"), content="again"))
    both = sorted([(state("x"), "input", hashed(x)), (state("y"), "input", hashed(y))])
    assert rejection(double) == ("rejected", "input-conflict", both)
    (fresh,) = await decide(notary, worker, spend(state("fresh")))
    assert rejection(fresh) == COMMITTED
    await notary.check(worker)


async def test_a_retry_gets_the_same_bytes(notary: Notary, worker: Worker) -> None:
    """A retry of a submission gets the same answer, byte for byte, whatever was decided meanwhile."""
    kept = notary.party.submission(spend(state("x")), spend(state("x"), content="double"))
    first = await notary.client.answered(worker.url, kept)
    await decide(notary, worker, spend(state("y"), references=[state("x")]))
    again = await notary.client.answered(worker.url, kept)
    assert (again.status, again.body) == (first.status, first.body) == (200, first.body)
    await notary.check(worker)


async def test_same_transaction_in_another_submission(notary: Notary, worker: Worker) -> None:
    """A decided transaction keeps its decision and position when it is submitted again with new ones."""
    (first,) = await decide(notary, worker, spend(state("x")))
    before, again, after = await decide(notary, worker, spend(state("y")), spend(state("x")), spend(state("x"), content="double"))
    assert again == first
    assert (before["position"], after["position"]) == (1, 2)
    assert rejection(after) == ("rejected", "input-conflict", [(state("x"), "input", hashed(first))])
    await notary.check(worker)


async def test_conflicts_inside_a_submission(notary: Notary, worker: Worker) -> None:
    """Within a submission too the first spender wins, over later inputs and references alike."""
    first, second, third, fourth = await decide(
        notary,
        worker,
        spend(state("x")),
        spend(state("x"), state("y"), content="double"),
        spend(state("y")),
        spend(references=[state("y")]),
    )
    assert rejection(first) == COMMITTED
    assert rejection(second) == ("rejected", "input-conflict", [(state("x"), "input", hashed(first))])
    assert rejection(third) == COMMITTED
    assert rejection(fourth) == ("rejected", "reference-conflict", [(state("y"), "reference", hashed(third))])
    assert [each["position"] for each in (first, second, third, fourth)] == [0, 1, 2, 3]
    await notary.check(worker)


async def test_a_consumed_reference_is_rejected(notary: Notary, worker: Worker) -> None:
    """A reference to a consumed state is rejected; a reference consumes nothing, and a state may be both in one transaction."""
    (read,) = await decide(notary, worker, spend(references=[state("x")]))
    (spent,) = await decide(notary, worker, spend(state("x"), references=[state("x")]))
    assert (rejection(read), rejection(spent)) == (COMMITTED, COMMITTED)
    (late,) = await decide(notary, worker, spend(state("y"), references=[state("x"), state("z")]))
    assert rejection(late) == ("rejected", "reference-conflict", [(state("x"), "reference", hashed(spent))])
    (y,) = await decide(notary, worker, spend(state("y")))
    assert rejection(y) == COMMITTED
    await notary.check(worker)


async def test_a_missed_window_is_rejected_for_ever(notary: Notary, worker: Worker) -> None:
    """A transaction is rejected outside its window, for ever: also when it is submitted again inside it."""
    hour = 3_600_000
    now = now_ms()
    soon = spend(state("x"), time_window={"from": now + 400, "until": now + hour})
    (early,) = await decide(notary, worker, soon)
    (late,) = await decide(notary, worker, spend(state("x"), time_window={"from": None, "until": now - hour}))
    await until(lambda: now_ms() > now + 1_000)
    (again,) = await decide(notary, worker, soon)
    if early["outcome"] == "rejected":  # else this machine was too slow to be early
        assert rejection(early) == ("rejected", "outside-time-window", [])
        (inside,) = await decide(notary, worker, spend(state("x"), time_window={"from": now - hour, "until": now + hour}))
        assert rejection(inside) == COMMITTED
    assert again == early
    assert late["outcome"] == "rejected"
    await notary.check(worker)


async def test_inputs_come_before_references_and_window(notary: Notary, worker: Worker) -> None:
    """Consumed inputs take precedence over consumed references, and these over a missed window."""
    past = {"from": None, "until": now_ms() - 3_600_000}
    x, y = await decide(notary, worker, spend(state("x")), spend(state("y")))
    all_three, two, one = await decide(
        notary,
        worker,
        spend(state("x"), references=[state("y")], time_window=past),
        spend(state("z"), references=[state("y")], time_window=past),
        spend(state("z"), references=[state("w")], time_window=past),
    )
    assert rejection(all_three) == ("rejected", "input-conflict", [(state("x"), "input", hashed(x))])
    assert rejection(two) == ("rejected", "reference-conflict", [(state("y"), "reference", hashed(y))])
    assert rejection(one) == ("rejected", "outside-time-window", [])
    await notary.check(worker)


async def test_positions_count_every_decision(notary: Notary, worker: Worker) -> None:
    """Positions count every decision, also rejections, without a gap, in the order of consecutive submissions."""
    positions: list[int] = []
    for number in range(12):
        decisions = await decide(notary, worker, *(spend(state(str(number // 2)), content=f"{number} {k}") for k in range(3)))
        positions += [decision["position"] for decision in decisions]
    assert positions == list(range(36))
    await notary.check(worker)


async def test_malformed_rejects_the_submission(notary: Notary, worker: Worker) -> None:
    """A malformed request makes all of its submission malformed: the others in it are not decided either."""
    good = notary.party.submission(spend(state("x")))
    bad = good.body.replace(b'"requests": [', b'"requests": [{"inputs": ["nonsense"], "content_hash": "00"}, ')
    answer = await notary.http.call(worker.url, "POST", "/v1/submissions", bad)
    assert (answer.status, answer.json()["type"]) == (400, "/problems/malformed")
    assert (await notary.http.get(worker.url, f"/v1/transactions/{good.ids[0]}")).status == 404
    (x,) = await decide(notary, worker, spend(state("x"), content="another"))
    assert (x["position"], *rejection(x)) == (0, *COMMITTED)
    await notary.check(worker)


async def test_one_of_many_concurrent_spends_commits(notary: Notary, worker: Worker) -> None:
    """Exactly one of many clients that consume one state at once commits; all others get that one as the consumer."""
    submissions = [notary.party.submission(spend(state("x"), content=str(number))) for number in range(60)]
    answers = await asyncio.gather(*(notary.client.decide([worker.url], submission) for submission in submissions))
    decisions = [decision for (decision,) in answers]
    (winner,) = [decision for decision in decisions if decision["outcome"] == "committed"]
    for decision in decisions:
        if decision is not winner:
            assert rejection(decision) == ("rejected", "input-conflict", [(state("x"), "input", hashed(winner))])
    assert sorted(decision["position"] for decision in decisions) == list(range(60))
    await notary.check(worker)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_a_restart_keeps_every_given_decision(notary: Notary, worker: Worker, how: signal.Signals) -> None:
    """A worker that was stopped, or killed, with requests in flight has every decision that it gave after a restart, and continues."""
    submissions = [notary.party.submission(spend(state(str(number % 40)), content=str(number))) for number in range(120)]
    asked = [asyncio.create_task(notary.client.decide([worker.url], submission)) for submission in submissions]
    await until(lambda: sum(task.done() for task in asked) >= 10, 0.005)
    worker.process.send_signal(how)
    assert await worker.ended() == (0 if how is signal.SIGTERM else -how)
    back = await notary.start("a").ready()
    await asyncio.gather(*asked)
    for submission in submissions:
        await notary.client.decide([back.url], submission)
    decisions = await notary.check(back)
    assert len([decision for decision in decisions if decision["outcome"] == "committed"]) == 40


@pytest.mark.parametrize("notary", [pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.nightly])], indirect=True)
async def test_admitted_requests_are_answered_after_sigterm(notary: Notary, worker: Worker) -> None:
    """After SIGTERM admitted requests are answered; later ones are rejected as surely not applied."""
    submissions = [notary.party.submission(spend(state(str(number)))) for number in range(100)]
    client = Client(notary.http, notary.history, wait_s=60)
    asked = [asyncio.create_task(client.ask(worker.url, submission)) for submission in submissions]
    await notary.until_metric(worker, "notary_positions ")
    worker.process.send_signal(signal.SIGTERM)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert await worker.ended() == 0
    back = await notary.start("a").ready()
    for submission, answer in zip(submissions, answers, strict=True):
        if isinstance(answer, BaseException):
            assert isinstance(answer, ConnectionError)
            continue
        assert answer.status in (200, 503), "no admitted submission is left without an answer"
        if answer.status == 503:
            assert answer.json()["type"] == "/problems/not-ready"
            assert (await notary.http.get(back.url, f"/v1/transactions/{submission.ids[0]}")).status == 404
    await notary.check(back)
