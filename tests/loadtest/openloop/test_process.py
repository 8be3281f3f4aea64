"""Tests the answers after which a process sends again, and those that are failures."""

import time
from collections.abc import Sequence
from contextlib import closing

import msgspec
import pytest

from loadtest.openloop import process
from loadtest.openloop.plan import Mix
from loadtest.openloop.process import Failed, LoadProcess
from loadtest.rig.connections import Channel
from tests.loadtest.openloop.honest import Honest, asked
from tests.loadtest.openloop.test_tally import PLAN

DECIDED = b"HTTP/1.1 200 OK\r\n\r\n"


async def _statuses_before(monkeypatch: pytest.MonkeyPatch, statuses: Sequence[int]) -> dict[str, int]:
    """Returns the counted retries of a submission that is decided after answers with these statuses."""
    [planned] = asked(1, Mix(double_spends=0, references=0, windows=0, retries=0))
    answers = [b"HTTP/1.1 %d X\r\n\r\nnothing" % status for status in statuses]
    answers.append(DECIDED + msgspec.json.encode({"decisions": Honest().answer(planned)}))

    async def post(*_: object) -> bytes:
        return answers.pop(0)

    monkeypatch.setattr(process, "_post", post)
    load = LoadProcess(PLAN)
    with closing(load._pool):
        await load._decided([Channel("http://127.0.0.1:9")], 0, planned, time.perf_counter() + 30)
    return load.tally.retried


async def test_overload_and_proxies_are_no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 429 and 503, and after 502 and 504 of a proxy, the same bytes are sent again, and each is counted."""
    assert await _statuses_before(monkeypatch, [429, 502, 503, 504]) == dict.fromkeys([f"status {at}" for at in (429, 502, 503, 504)], 1)


async def test_an_internal_error_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a 500 the submission has failed: the notary has no reason to answer that."""
    with pytest.raises(Failed, match="nothing"):
        await _statuses_before(monkeypatch, [500])
