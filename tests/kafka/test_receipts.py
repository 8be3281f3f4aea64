"""Tests receipts and roots on real brokers: a proof stays valid, and a worker with wrong decisions stops while the others go on."""

import asyncio
import random
import shutil
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

import pytest

from notary.decision import Outcome, from_row, to_row
from notary.index.store import DECISIONS, STATES
from notary.receipts import proof_of
from notary.tree.paths import format_tile_path
from notary.verify import SignedCheckpoint, verify_checkpoint, verify_consistency, verify_receipt
from ordering.ids import parse_state
from tests.checkers.history import Submission
from tests.clients.load import Load, until
from tests.clients.party import spend, state
from tests.kafka.workers import Notary, Worker
from tests.notary.rows import put_closed_row

pytestmark = pytest.mark.kafka

OFTEN: dict[str, Any] = {"worker_checkpoint_interval_ms": 200, "worker_audit_interval_ms": 20}


class Auditor:
    """An external auditor: keeps every checkpoint that it sees, and trusts only the verifier key."""

    def __init__(self, notary: Notary, verifier_key: str) -> None:
        self._notary = notary
        self._keys = [verifier_key]
        self.checkpoints: dict[int, tuple[SignedCheckpoint, str]] = {}

    @classmethod
    async def of(cls, notary: Notary, worker: Worker) -> "Auditor":
        return cls(notary, (await notary.http.get(worker.url, "/v1/notary")).json()["verifier_key"])

    def receipt(self, receipt: str, decision: dict[str, Any]) -> None:
        """Verify a receipt, and check that all checkpoints of one size have the same bytes."""
        self._keep(verify_receipt(receipt, decision, self._keys), proof_of(receipt).checkpoint)

    async def latest(self, worker: Worker) -> SignedCheckpoint:
        note = (await self._notary.http.get(worker.url, "/checkpoint")).body.decode()
        checkpoint = verify_checkpoint(note, self._keys)
        self._keep(checkpoint, note)
        return checkpoint

    async def decide(self, worker: Worker, submissions: Sequence[Submission]) -> list[dict[str, Any]]:
        """Submit to that worker; returns its decisions, each verified by its receipt."""
        found: list[dict[str, Any]] = []
        for submission in submissions:
            self._notary.history.submissions.append(submission)
            while True:
                answer = await self._notary.http.call(worker.url, "POST", "/v1/submissions", submission.body)
                if answer.status == 200:
                    break
                assert answer.status in (202, 503), answer
                await asyncio.sleep(0.05)
            for decision in answer.json()["decisions"]:
                self.receipt(decision.pop("receipt"), decision)
                found.append(decision)
        return found

    async def check_consistency(self, worker: Worker) -> int:
        """Check that all pairs of checkpoints are consistent, by the tiles that this worker serves; returns the number of pairs."""
        await self.latest(worker)
        tiles: dict[str, bytes] = {}
        checkpoints = [checkpoint for checkpoint, _ in self.checkpoints.values()]
        # Consistency is transitive, so neighbours are enough; some more distant pairs exercise longer proofs.
        ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint.size)
        pairs = [*pairwise(ordered), *random.Random(1).sample(list(combinations(ordered, 2)), min(200, len(ordered)))]
        for older, newer in pairs:
            while True:
                missing: list[str] = []

                def read(level: int, index: int, width: int, missing: list[str] = missing) -> bytes:
                    path = format_tile_path(level, index, width)
                    if path not in tiles:
                        missing.append(path)
                        return bytes(32 * width)
                    return tiles[path]

                try:
                    verify_consistency(older, newer, read)
                except Exception:
                    if not missing:
                        raise
                if not missing:
                    break
                for path in missing:
                    answer = await self._notary.http.get(worker.url, f"/{path}")
                    assert (answer.status, "immutable" in answer.headers["cache-control"]) == (200, True)
                    tiles[path] = answer.body
        return len(pairs)

    def _keep(self, checkpoint: SignedCheckpoint, note: str) -> None:
        assert self.checkpoints.setdefault(checkpoint.size, (checkpoint, note)) == (checkpoint, note)


@pytest.mark.parametrize("count", [3_000, pytest.param(10_000, marks=pytest.mark.nightly)])
async def test_receipts_outlive_crash_restart_and_disk(notary: Notary, count: int) -> None:
    """Thousands of decisions are proved at once, after kill -9, after a replay on a new disk, and by another worker."""
    a, b = await notary.start_all("a", "b")
    auditor, draw = await Auditor.of(notary, a), random.Random(5)
    states = [state(f"receipts/{number}") for number in range(count)]
    requests = [spend(*draw.sample(states, draw.randint(1, 3)), content=str(number)) for number in range(count)]
    each = count // 100
    submissions = [notary.party.submission(*requests[at : at + each]) for at in range(0, count, each)]
    first = await auditor.decide(a, submissions)
    assert {decision["outcome"] for decision in first} == {"committed", "rejected"}
    assert sorted(decision["position"] for decision in first) == list(range(count))
    await notary.same_height(a, b)
    assert await auditor.decide(b, submissions) == first
    assert await auditor.latest(a) == await auditor.latest(b)
    a.kill()
    a = await notary.start("a").ready()
    assert await auditor.decide(a, submissions) == first
    b.kill()
    shutil.rmtree(notary.directory / "index" / "b")
    b = await notary.start("b").ready()
    await auditor.decide(b, [notary.party.submission(spend(state("one more")))])
    assert await auditor.decide(b, submissions) == first
    await notary.same_height(a, b)
    one = await notary.http.get(a.url, f"/v1/transactions/{first[17]['transaction_id']}/receipt")
    other = await notary.http.get(b.url, f"/v1/transactions/{first[17]['transaction_id']}/receipt")
    assert one.body == other.body
    auditor.receipt(one.body.decode(), first[17])
    assert await auditor.check_consistency(b) >= 100
    await notary.check(a, b)


async def unrecorded(notary: Notary, worker: Worker, request: dict[str, Any]) -> None:
    """Submit to a worker that may be wrong: its answer is not part of the history, the submission is."""
    submission = notary.party.submission(request)
    notary.history.submissions.append(submission)
    await notary.http.call(worker.url, "POST", "/v1/submissions", submission.body, {"prefer": "wait=1"})


@pytest.mark.parametrize(
    "first",
    [pytest.param("a", id="a right one writes first"), pytest.param("c", id="the wrong one writes first", marks=pytest.mark.nightly)],
)
async def test_a_worker_that_is_wrong_stops_and_the_others_go_on(notary: Notary, first: str) -> None:
    """One of three workers that loses a consumed state and commits a double spend is quarantined, whichever wrote the first checkpoint."""
    a, b, c = workers = [notary.start(name, **OFTEN) for name in "abc"]
    for worker in workers:
        await worker.ready()
    coin = state("the coin")
    await notary.client.decide([a.url], notary.party.submission(spend(coin, content="first")))
    await notary.same_height(a, b, c)
    await c.stop()
    put_closed_row(notary.directory / "index" / "c", STATES, parse_state(coin), None)
    c = await notary.start("c", **OFTEN).ready()
    # Only a worker that sends gets a turn to write; the wrong one's answers are not part of the history.
    sender = {"a": a, "c": c}[first]
    number = 0
    await unrecorded(notary, sender, spend(coin, content="second"))
    while not await notary.says(c, 503, "quarantined"):
        number += 1
        await unrecorded(notary, sender if number < 20 else a, spend(state(f"more/{number}")))
        await asyncio.sleep(0.05)
    assert await notary.metric(c, "notary_index_quarantined ") == 1
    await until(lambda: "is quarantined: at " in c.messages)
    answer = await notary.http.get(c.url, f"/v1/states/{coin}")
    assert (answer.status, answer.json()["type"]) == (503, "/problems/not-ready")
    await notary.until_ready(a, b)
    async with Load(notary.client, notary.party, [a.url, b.url], seed=9) as load:
        await load.until(50)
    c.process.terminate()
    assert await c.ended() == 2
    again = notary.start("c", **OFTEN)
    assert await again.ended() == 2
    assert "never answers again" in again.messages
    shutil.rmtree(notary.directory / "index" / "c")
    replayed = await notary.start("c", **OFTEN).ready()
    await notary.check(a, b, replayed, roots_right=False)


async def test_a_decision_that_was_changed_on_disk_quarantines_its_index(notary: Notary) -> None:
    """A row whose outcome differs from its leaf is found by the audit, and is never returned; the other worker continues."""
    a, b = [notary.start(name, **OFTEN) for name in "ab"]
    await asyncio.gather(a.ready(), b.ready())
    async with Load(notary.client, notary.party, [a.url, b.url], seed=10) as load:
        await load.until(100)
    await notary.same_height(a, b)
    await b.stop()
    rows = await notary.rows(b)
    key, row = next((key, row) for key, row in rows[DECISIONS] if from_row(key, row).outcome is Outcome.COMMITTED)
    decision = from_row(key, row)
    changed = type(decision)(decision.position, key, Outcome.OUTSIDE_TIME_WINDOW, decision.log_time_ms)
    put_closed_row(notary.directory / "index" / "b", DECISIONS, key, to_row(changed))
    b = notary.start("b", **OFTEN)
    await until(lambda: "is quarantined: " in b.messages)
    assert f"the decision at position {decision.position} is not the leaf" in b.messages
    b.process.terminate()
    assert await b.ended() == 2
    async with Load(notary.client, notary.party, [a.url], seed=11) as load:
        await load.until(50)
    await notary.check(a)
