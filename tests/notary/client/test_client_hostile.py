"""The asyncio client against workers that attack it: keys, names, cookies, compression, waits, and texts for a terminal."""

import argparse
import asyncio
import json
import ssl
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.cli import main
from notary.cli.submit import tls_of
from notary.client import Answer, Contradiction, KnownNotaries, Rejected, Unanswered, Unproven, tls_context, transaction_ids
from notary.client.answers import read_transaction
from notary.client.transport import http_client
from notary.receipts import VerifierKey
from notary.receipts.key_history import endorse
from ordering.errors import ConfigurationError, Malformed
from tests.notary.certificates import Authority
from tests.notary.client import scripted
from tests.notary.client.scripted import (
    KEY,
    NAME,
    ORIGIN,
    PARTY,
    VERIFIER,
    VERIFIER_KEY,
    Notary,
    Worker,
    key_file,
    nobody,
    receipt_of,
    reply,
    request,
    staged,
)
from tests.notary.client.test_client import client_of, submit

PROBLEM = "Content-Type: application/problem+json"
SECOND, THIRD = [Ed25519PrivateKey.from_private_bytes(bytes(range(first, first + 32))) for first in (1, 2)]


class Attacker(Worker):
    """A worker whose steps may be bytes to send, and whose description of the notary the test sets."""

    def __init__(
        self, notary: Notary, script: Sequence[Any] = (), then: Any = "answer", described: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(notary, script, then)
        self.described = described or {}

    async def _step(self, step: Any, body: bytes, writer: Any) -> bytes | None:
        if callable(step):
            step = step(body)
        return step if isinstance(step, bytes) else await super()._step(step, body, writer)

    def _get(self, path: str) -> bytes:
        if path == "/v1/notary" and self.described:
            return reply(200, {"name": NAME, "origin": ORIGIN, "verifier_key": VERIFIER_KEY, **self.described})
        return super()._get(path)


def key_of(private: Ed25519PrivateKey) -> VerifierKey:
    return VerifierKey(ORIGIN, private.public_key().public_bytes_raw())


def rotated_to(private: Ed25519PrivateKey) -> dict[str, object]:
    """Returns the description of a notary whose first key has endorsed this one."""
    endorsed = endorse(VERIFIER, KEY, key_of(private))
    later = {"verifier_key": endorsed.verifier_key, "endorsement": endorsed.endorsement}
    return {"verifier_key": str(key_of(private)), "keys": [{"verifier_key": VERIFIER_KEY}, later]}


def decided_with(notary: Notary, private: Ed25519PrivateKey) -> Callable[[bytes], bytes]:
    """Returns a step that decides, and proves its decisions with this key."""

    def answer(body: bytes) -> bytes:
        decisions = notary.submit(body)
        before, scripted.KEY = scripted.KEY, private
        try:
            return reply(200, {"decisions": [{**decision, "receipt": receipt_of(decision)} for decision in decisions]})
        finally:
            scripted.KEY = before

    return answer


@pytest.mark.parametrize(
    "attack",
    [
        reply(503, b'{"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}", PROBLEM),
        reply(503, {}, PROBLEM, "Retry-After: Mon, 1 Jan 9999999999 00:00:00 GMT"),
        *[reply(307, b"", f"Location: {where}") for where in ("http://xn--/", "http:[::1", ":ftp://]")],
        reply(404, b"<html>a proxy", "Content-Type: text/html"),
        reply(202, {"decisions": [None] * 3}, "Retry-After: 999999999"),
    ],
    ids=["a deep problem", "a date beyond all calendars", "no host", "no path", "no address", "a page of a proxy", "a long wait"],
)
async def test_a_bad_reply_makes_the_client_ask_another_worker(attack: bytes) -> None:
    """No reply of one worker ends the call, or delays it for more than a pause."""
    notary = Notary()
    with staged(Attacker(notary, then=attack), Worker(notary, [])) as urls:
        assert len(await submit(urls, deadline_s=20)) == 3


async def test_a_long_wait_ends_and_is_named() -> None:
    """A back-off holds for later calls, which say so; no worker can ask for more than a minute."""
    with staged(Worker(Notary(), ["503 overloaded 999999999"])) as urls:
        async with client_of(urls, notary_name=NAME) as client:
            for _ in range(2):
                with pytest.raises(Unanswered) as raised:
                    await client.submit([request(0)], deadline_s=2)
            assert "not tried: its Retry-After ends in" in str(raised.value)
            assert client._transport._route.next(0.0)[1] <= asyncio.get_running_loop().time() + 60


async def test_a_compressed_reply_is_not_expanded() -> None:
    """The client asks for none; a kilobyte could expand to a gigabyte."""
    notary, packed = Notary(), zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = packed.compress(bytes(1 << 20)) + packed.flush()
    honest = Worker(notary, [])
    with staged(Attacker(notary, [reply(200, bomb, "Content-Encoding: gzip")]), honest) as urls:
        assert len(await submit(urls)) == 3
    assert honest.headers[0]["accept-encoding"] == "identity"


async def test_cookies_of_one_worker_go_to_no_other() -> None:
    """Cookies ignore ports: with those of an attacker, another worker would reject the head as too large."""
    notary = Notary()
    honest = Worker(notary, [])
    cookies = [f"Set-Cookie: c{number}={'x' * 4_000}; Path=/" for number in range(12)]
    with staged(Attacker(notary, [reply(503, {}, PROBLEM, *cookies)]), honest) as urls:
        await submit(urls)
    assert "cookie" not in honest.headers[0]


async def test_the_name_of_an_unchecked_worker_is_not_signed(tmp_path: Path) -> None:
    """A look-up may use the name that a worker reports; a submission is for the notary whose key is trusted."""
    notary = Notary()
    other = {"name": "O=Other", "verifier_key": str(VerifierKey("other", bytes(32)))}
    with staged(Attacker(notary, ["503 overloaded"], described=other), Worker(notary, [])) as urls:
        known = KnownNotaries(tmp_path / "known", lambda text: None)
        known.keep(urls, VERIFIER, NAME)
        async with client_of(urls, verifier_keys=(), known_notaries=known) as client:
            await client.state("ab" * 32 + ":0")
            with suppress(Unproven):
                await client.submit([request(0)], deadline_s=20)
            assert await client.notary_name() == NAME


async def test_a_submission_without_receipts_is_for_the_trusted_notary() -> None:
    """The party signs no name that only an unchecked worker reports: the notary of that name would decide the submission."""
    notary = Notary()
    other = {"name": "O=Other", "verifier_key": str(VerifierKey("other", bytes(32)))}
    with staged(Attacker(notary, then="503 overloaded", described=other), Worker(notary, [])) as urls:
        async with client_of(urls) as client:
            await client.state("ab" * 32 + ":0")
            [answer] = await client.submit([request(0)], deadline_s=20, receipts=False)
    assert answer.committed


async def test_a_key_that_was_replaced_endorses_no_other(tmp_path: Path) -> None:
    """A thief of the first key can no longer fork the history after a rotation, or take the file back to it."""
    notary = Notary()
    worker = Attacker(notary, described=rotated_to(SECOND))
    with staged(worker) as urls:
        known = KnownNotaries(tmp_path / "known", lambda text: None)
        known.keep(urls, VERIFIER, NAME)
        async with client_of(urls, verifier_keys=(), known_notaries=known) as client:
            await client.submit([request(0)])
            assert [line.key for line in known.find(urls)] == [key_of(SECOND)]
            worker.described, worker.then = rotated_to(THIRD), decided_with(notary, THIRD)  # type: ignore[assignment]
            with pytest.raises(Unproven):
                await client.submit([request(1)], deadline_s=3)
            worker.described = {"keys": [{"verifier_key": VERIFIER_KEY}]}
            with pytest.raises(Unproven):
                await client.submit([request(1)], deadline_s=3)
        assert [line.key for line in known.find(urls)] == [key_of(SECOND)]


async def test_a_rotation_is_followed_beside_an_attacker() -> None:
    """A worker without proofs hides neither the new key of the others nor their answers."""
    notary = Notary()
    honest = Attacker(notary, then=decided_with(notary, SECOND), described=rotated_to(SECOND))
    with staged(Worker(notary, [], "unproven"), honest) as urls:
        assert len(await submit(urls)) == 3


async def test_an_unproven_outcome_waits_for_a_worker_that_is_busy() -> None:
    """The other worker proves it a second later, long before the deadline."""
    notary = Notary()
    with staged(Worker(notary, [], "unproven"), Worker(notary, ["503 overloaded 1"])) as urls:
        assert len(await submit(urls)) == 3


async def test_a_name_with_a_line_separator_leaves_the_file_in_order(tmp_path: Path) -> None:
    """JSON escapes line feeds, and no other character that text may be split at."""
    with staged(Attacker(Notary(), described={"name": "O=Odd\u2028Name"})) as urls:
        known = KnownNotaries(tmp_path / "known", lambda text: None)
        known.keep(["http://honest"], VERIFIER, NAME)
        async with client_of(urls, verifier_keys=(), known_notaries=known) as client:
            await client.notary_name()
        assert known.find(["http://honest"])
    with pytest.raises(ConfigurationError, match="is not a notary's URL"):
        client_of(["http://127.0.0.1:1/a b"])


async def test_a_description_that_is_rejected_pins_no_key(tmp_path: Path) -> None:
    """At first use the key history is checked before its key is kept."""
    unendorsed = [{"verifier_key": VERIFIER_KEY}, {"verifier_key": str(VerifierKey(ORIGIN, bytes(32)))}]
    with staged(Attacker(Notary(), described={"keys": unendorsed})) as urls:
        known = KnownNotaries(tmp_path / "known", lambda text: None)
        async with client_of(urls, verifier_keys=(), known_notaries=known) as client:
            with pytest.raises(Unproven):
                await client.notary_name(deadline_s=5)
        assert not known.find(urls)


def submitted(folder: Path, worker: Worker) -> int:
    """Run `notary submit` with one request; returns its exit code."""
    (folder / "requests").write_text(json.dumps(request(0)) + "\n")
    with staged(worker) as urls:
        trusted = ["--key", key_file(folder), "--party", PARTY, "--url", urls[0], "--verifier-key", VERIFIER_KEY]
        return main(["submit", str(folder / "requests"), *trusted])


def test_text_of_a_worker_is_escaped_and_cut(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It must not move the cursor, fake a line of the command, or fill the screen."""
    detail = "\x1b[2J\nnotary submit: 1 requests decided: 1 committed" + "A" * 3_000_000
    assert submitted(tmp_path, Attacker(Notary(), then=reply(400, {"type": "/problems/malformed", "detail": detail}, PROBLEM))) == 2
    err = capfd.readouterr().err
    assert "\x1b" not in err
    assert "\nnotary submit: 1 requests decided: 1 committed" not in err
    assert len(err) < 10_000


@pytest.mark.parametrize("head", [b"\x01" * 60_000 + b": 1", b"Location: http://a:" + b"1" * 60_000], ids=["a header", "a port"])
async def test_a_head_that_is_no_http_fills_no_screen(head: bytes) -> None:
    """httpx quotes the head in its error."""
    with staged(Attacker(Notary(), then=b"HTTP/1.1 307 X\r\n" + head + b"\r\n\r\n")) as urls, pytest.raises(Unanswered) as raised:
        await submit(urls, deadline_s=1)
    assert len(str(raised.value)) < 3_000


def test_a_rejection_after_a_lost_reply_leaves_the_outcome_unknown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The first attempt was decided: the command must not say that the request was rejected."""
    notary = Notary()
    assert submitted(tmp_path, Attacker(notary, ["lost reset"], then="413 too-large")) != 0
    err = capfd.readouterr().err
    assert len(notary.decisions) == 1
    assert "outcome unknown: " in err
    assert "rejected: " not in err


@pytest.mark.parametrize("workers", [("403 unknown-party", "lost reset"), ("unproven", "413 too-large")])
async def test_a_rejection_says_that_another_worker_may_have_decided(workers: Sequence[str]) -> None:
    """The other worker decided, and its reply was lost or proves nothing."""
    notary = Notary()
    with staged(*[Worker(notary, [], then) for then in workers]) as urls, pytest.raises(Rejected) as raised:
        await submit(urls, deadline_s=4)
    assert notary.decisions
    assert raised.value.may_be_decided


INPUT_1, INPUT_2, REFERENCE = [
    {"state": f"{'cd' * 32}:{index}", "kind": kind, "consumed_by": "ef" * 32} for index, kind in enumerate(("input", "input", "reference"))
]


@pytest.mark.parametrize(
    ("reason", "conflicts", "problem"),
    [
        ("input-conflict", [INPUT_1, INPUT_1], "do not ascend"),
        ("input-conflict", [INPUT_2, INPUT_1], "do not ascend"),
        ("input-conflict", [INPUT_1, REFERENCE], "an reference listed under input-conflict"),
        ("input-conflict", [], "0 conflicts with the reason"),
        ("outside-time-window", [INPUT_1], "1 conflicts with the reason"),
    ],
)
def test_members_that_contradict_each_other_are_malformed(reason: str, conflicts: list[dict[str, str]], problem: str) -> None:
    """No notary decides so. Without a receipt nothing else would detect it."""
    decision = {"transaction_id": "ab" * 32, "position": 0, "outcome": "rejected", "log_time": 0}
    with pytest.raises(Malformed, match=problem):
        read_transaction(json.dumps({**decision, "reason": reason, "conflicts": conflicts}).encode(), "ab" * 32)


WINDOWED = [{**request(number), "time_window": {"from": 1_000, "until": 2_000}} for number in (1, 2)]
COMMITTED: dict[str, Any] = {"outcome": "committed", "reason": None}
OUTSIDE: dict[str, Any] = {"outcome": "rejected", "reason": "outside-time-window"}


async def answered(requests: list[dict[str, Any]], *changes: dict[str, Any], receipts: bool = True) -> Sequence[Answer]:
    """Returns what a client receives if a worker changes the notary's decisions, and proves them so; another worker does not."""
    notary = Notary()

    def changed(body: bytes) -> bytes:
        decided = [{**each, **change} for each, change in zip(notary.submit(body), changes, strict=True)]
        return reply(200, {"decisions": [{**each, "receipt": receipt_of(each)} if receipts else each for each in decided]})

    with staged(Attacker(notary, [changed]), Worker(notary, [])) as urls:
        async with client_of(urls) as client:
            return await client.submit(requests, receipts=receipts)


@pytest.mark.parametrize(
    ("outcome", "log_time", "problem"),
    [
        (COMMITTED, 999, "committed at log_time 999, which is outside the request's time window"),
        (COMMITTED, 1_000, ""),
        (COMMITTED, 1_999, ""),
        (COMMITTED, 2_000, "committed at log_time 2000, which is outside"),
        (OUTSIDE, 999, ""),
        (OUTSIDE, 1_000, "outside-time-window at log_time 1000, which is inside"),
        (OUTSIDE, 1_999, "outside-time-window at log_time 1999, which is inside"),
        (OUTSIDE, 2_000, ""),
    ],
)
async def test_a_proven_outcome_against_the_time_window_is_evidence(outcome: dict[str, Any], log_time: int, problem: str) -> None:
    """The id covers the window, so a notary that keeps the contract proves no such decision."""
    decision = {**outcome, "log_time": log_time}
    if not problem:
        assert [answer.log_time for answer in await answered(WINDOWED[:1], decision)] == [log_time]
        return
    with pytest.raises(Contradiction, match=problem) as raised:
        await answered(WINDOWED[:1], decision)
    assert [answer.log_time for answer, _ in raised.value.evidence] == [log_time]
    assert raised.value.answers == (None,)


async def test_the_outcome_before_one_against_the_time_window_is_evidence_too() -> None:
    """Both are for one transaction. It is no outcome any more, so nothing else would show it."""
    notary = Notary()

    def decided(log_time: int, *, complete: bool) -> Callable[[bytes], bytes]:
        def answer(body: bytes) -> bytes:
            proven = [{**each, "receipt": receipt_of(each)} for each in [{**each, "log_time": log_time} for each in notary.submit(body)]]
            return reply(200, {"decisions": proven}) if complete else reply(202, {"decisions": [proven[0], None]}, "Retry-After: 0")

        return answer

    with staged(Attacker(notary, [decided(1_000, complete=False), decided(2_000, complete=True)])) as urls:
        async with client_of(urls) as client:
            with pytest.raises(Contradiction, match="two decisions for transaction") as raised:
                await client.submit(WINDOWED)
    assert [answer.log_time for answer, _ in raised.value.evidence] == [1_000, 2_000]
    assert raised.value.answers == (None, None)


@pytest.mark.parametrize("receipts", [True, False])
async def test_a_conflict_about_a_state_of_another_request_is_evidence(receipts: bool) -> None:
    """The id covers the states. Without a receipt the decision only does not count, and another worker answers."""
    wrong = {"outcome": "rejected", "reason": "input-conflict", "conflicts": [INPUT_1]}
    if not receipts:
        assert [answer.committed for answer in await answered([request(1)], wrong, receipts=False)] == [True]
        return
    with pytest.raises(Contradiction, match="cd:0 is not among the request's inputs") as raised:
        await answered([request(1)], wrong)
    assert [answer.reason for answer, _ in raised.value.evidence] == ["input-conflict"]


async def test_an_outcome_against_the_time_window_without_a_receipt_does_not_count() -> None:
    """Without a receipt it is no evidence. Another worker answers."""
    [answer] = await answered([request(1)], OUTSIDE, receipts=False)
    assert answer.committed


@pytest.mark.parametrize("wrong", [OUTSIDE, {"position": 7}, {"log_time": 1760000001000}])
async def test_nothing_of_an_unproven_reply_that_contradicts_itself_counts(wrong: dict[str, Any]) -> None:
    """Its other answers are no outcomes either. No receipt proves the contradiction, so it is no evidence: another worker answers."""
    answers = await answered([request(1), request(2)], {"position": 7}, wrong, receipts=False)
    assert [(answer.committed, answer.position) for answer in answers] == [(True, 0), (True, 1)]


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ((0, 1_000), (1, 1_000), ""),
        ((1, 1_001), (0, 1_000), ""),
        ((0, 1_001), (1, 1_000), "log_time falls from 1001 at position 0 to 1000 at 1"),
        ((7, 1_000), (7, 1_000), "two decisions at position 7"),
    ],
)
async def test_log_time_does_not_fall_as_position_rises(first: tuple[int, int], second: tuple[int, int], problem: str) -> None:
    changes = [{"position": position, "log_time": log_time} for position, log_time in (first, second)]
    with pytest.raises(Contradiction, match=problem) if problem else nullcontext():
        assert len(await answered(WINDOWED, *changes)) == 2


@pytest.mark.parametrize(
    ("second", "positions", "contradicts"),
    [
        ({"inputs": request(1)["inputs"]}, (0, 1), True),
        ({"references": request(1)["inputs"]}, (0, 1), True),
        ({"references": request(1)["inputs"]}, (1, 0), False),
        ({"inputs": request(2)["inputs"], "references": request(2)["inputs"]}, (0, 1), False),
    ],
    ids=["a double spend", "a consumed reference", "a reference before", "its own state"],
)
async def test_a_proven_double_spend_is_evidence(second: dict[str, Any], positions: tuple[int, int], *, contradicts: bool) -> None:
    """A leaf does not contain the consumed states, so only the client that sent both requests can see it."""
    changes = [{**COMMITTED, "conflicts": [], "position": position, "log_time": 1_000} for position in positions]
    answering = answered([request(1), {**second, "content_hash": "00" * 32}], *changes)
    if not contradicts:
        assert [answer.position for answer in await answering] == list(positions)
        return
    with pytest.raises(Contradiction, match=r"position 1 is committed, and that at position 0 consumed its state \w+:0") as raised:
        await answering
    assert [answer.position for answer, _ in raised.value.evidence] == [0, 1]


@pytest.mark.parametrize("receipts", [True, False])
async def test_a_rejection_because_of_the_transaction_itself_is_evidence(*, receipts: bool) -> None:
    """A notary that forgets a decision, and not what it consumed, would reject the retry because of the transaction itself.

    A conflict may name another transaction of the submission that is not committed before it: a salvage may have lost that one.
    """
    requests = [request(1), request(2)]
    consumer = sha256(bytes.fromhex(transaction_ids(requests, NAME)[1])).hexdigest()
    conflict = {"state": request(2)["inputs"][0], "kind": "input", "consumed_by": consumer}
    rejected = {"outcome": "rejected", "reason": "input-conflict", "conflicts": [conflict]}
    changes: list[dict[str, Any]] = [{"position": 1, "log_time": 1_000}, {"position": 0, "log_time": 1_000, **rejected}]
    if not receipts:
        assert [answer.committed for answer in await answered(requests, *changes, receipts=False)] == [True, True]
        return
    with pytest.raises(Contradiction, match=r"contradicts its request: \w+:0 is consumed by the rejected transaction itself") as raised:
        await answered(requests, *changes)
    assert [answer.position for answer, _ in raised.value.evidence] == [0]


CITED = {"state": request(1)["inputs"][0], "kind": "input", "consumed_by": "ef" * 32}
TAKEN = {"outcome": "rejected", "reason": "input-conflict", "conflicts": [CITED]}
OTHERS = {"state": request(3)["inputs"][0], "kind": "input", "consumed_by": "ef" * 32}


@pytest.mark.parametrize("positions", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    ("first", "second"), [({**COMMITTED, "conflicts": []}, TAKEN), (TAKEN, {**TAKEN, "conflicts": [{**CITED, "consumed_by": "cd" * 32}]})]
)
async def test_two_consumers_of_one_state_are_evidence(first: dict[str, Any], second: dict[str, Any], positions: tuple[int, int]) -> None:
    """A committed transaction consumed the state, or a rejection cites a consumer; and another rejection cites another one."""
    double = [request(1), {**request(2), "inputs": request(1)["inputs"]}]
    changes = [{**each, "position": position, "log_time": 1} for each, position in zip((first, second), positions, strict=True)]
    with pytest.raises(Contradiction, match=r"have two consumers of the state \w+:0") as raised:
        await answered(double, *changes)
    assert len(raised.value.evidence) == 2


@pytest.mark.parametrize(
    ("second", "rejected"),
    [
        ({"inputs": [*request(1)["inputs"], *request(3)["inputs"]]}, {**TAKEN, "conflicts": [OTHERS]}),
        ({**WINDOWED[1], "inputs": request(1)["inputs"]}, {**OUTSIDE, "conflicts": []}),
        ({**WINDOWED[1], "references": request(1)["inputs"]}, {**OUTSIDE, "conflicts": []}),
    ],
    ids=["another input", "the window in place of the input", "the window in place of the reference"],
)
async def test_a_rejection_without_a_consumed_state_is_evidence(second: dict[str, Any], rejected: dict[str, Any]) -> None:
    """Every consumed input is listed, then every consumed reference; the time window comes last."""
    changes = [{**COMMITTED, "conflicts": [], "position": 0, "log_time": 1}, {**rejected, "position": 1, "log_time": 1}]
    with pytest.raises(Contradiction, match=r"position 1 does not list \w+:0, which that at position 0 consumed"):
        await answered([request(1), {"content_hash": "00" * 32, **second}], *changes)


async def test_references_are_not_listed_beside_inputs() -> None:
    """Such a rejection is right, though the first transaction consumed the reference."""
    second = {**request(3), "references": request(1)["inputs"]}
    changes = [{**COMMITTED, "conflicts": [], "position": 0, "log_time": 1}, {**TAKEN, "conflicts": [OTHERS], "position": 1, "log_time": 1}]
    assert len(await answered([request(1), second], *changes)) == 2


async def test_a_double_spend_without_receipts_does_not_count() -> None:
    """Another worker answers, and rejects the second request."""
    double = [request(1), request(2, state=1)]
    answers = await answered(double, COMMITTED, {**COMMITTED, "conflicts": []}, receipts=False)
    assert [answer.committed for answer in answers] == [True, False]


async def test_a_rejection_on_a_second_connection_leaves_the_outcome_unknown() -> None:
    """The worker decided, and closed the connection, which an earlier call had opened. It rejects the same bytes on the next one."""
    notary = Notary()
    with staged(Worker(notary, ["answer", "lost reset"], "413 too-large")) as urls:
        async with client_of(urls) as client:
            await client.submit([request(1)])
            with pytest.raises(Rejected) as raised:
                await client.submit([request(2)])
    assert len(notary.decisions) == 2
    assert raised.value.may_be_decided


@pytest.mark.parametrize("status", [429, 503])
async def test_a_proxy_does_not_know_that_nothing_was_admitted(status: int) -> None:
    """It gives such a status of its own when a worker decides and then ends the connection. A worker's answer is a problem document."""
    notary = Notary()

    def broken_off(body: bytes) -> bytes:
        notary.submit(body)
        return reply(status, b"upstream connect error or disconnect/reset before headers", "Content-Type: text/plain")

    with staged(Attacker(notary, [broken_off], then="413 too-large")) as urls, pytest.raises(Rejected) as raised:
        await submit(urls, deadline_s=20)
    assert raised.value.may_be_decided


async def test_a_rejection_after_a_rotation_leaves_the_outcome_unknown() -> None:
    """The first attempt was decided under the new key, which the client did not know yet."""
    notary = Notary()
    worker = Attacker(notary, [decided_with(notary, SECOND)], "413 too-large", described=rotated_to(SECOND))
    with staged(worker) as urls, pytest.raises(Rejected) as raised:
        await submit(urls)
    assert raised.value.may_be_decided


async def test_a_rotation_is_followed_beside_a_dead_worker() -> None:
    """The keys are asked for at once, not after all attempts at the dead worker."""
    notary = Notary()
    honest = Attacker(notary, then=decided_with(notary, SECOND), described=rotated_to(SECOND))
    with staged(honest) as urls, nobody() as nowhere:
        assert len(await submit([*urls, nowhere], deadline_s=600)) == 3


async def test_concurrent_calls_follow_one_rotation() -> None:
    """One of them asks for the keys first; the others find its result."""
    notary = Notary()
    honest = Attacker(notary, then=decided_with(notary, SECOND), described=rotated_to(SECOND))
    with staged(honest) as urls:
        async with client_of(urls, notary_name=NAME) as client:
            done = await asyncio.gather(*[client.submit([request(number)]) for number in range(4)])
    assert [len(answers) for answers in done] == [1] * 4


class Liar(Worker):
    """A worker that shows decisions with another log time, and has no receipts for them."""

    def _get(self, path: str) -> bytes:
        kind, _, what = path.removeprefix("/v1/").partition("/")
        if kind == "transactions" and what in self.notary.decisions:
            return reply(200, {**self.notary.decisions[what], "log_time": 1})
        if kind == "transactions":
            return reply(404, {"type": "/problems/not-found"}, PROBLEM)
        return super()._get(path)


async def test_a_look_up_asks_another_worker_for_decision_and_proof() -> None:
    """One worker shows a decision that it cannot prove. The next one proves its own."""
    notary = Notary()
    with staged(Liar(notary, []), Worker(notary, [])) as urls:
        async with client_of(urls[1:]) as client:
            [answer] = await client.submit([request(1)])
        async with client_of(urls) as client:
            assert await client.transaction(answer.transaction_id) == answer


async def test_two_transactions_at_one_position_contradict_each_other() -> None:
    """Two replies prove them: the notary signed two trees. Neither is an outcome."""
    notary = Notary()

    def forked(number: int) -> Callable[[bytes], bytes]:
        def step(body: bytes) -> bytes:
            decided = [{**each, "position": 0} for each in notary.submit(body)]
            shown = [{**each, "receipt": receipt_of(each)} if at == number else None for at, each in enumerate(decided)]
            return reply(202, {"decisions": shown}, "Retry-After: 0")

        return step

    with staged(Attacker(notary, [forked(0), forked(1)])) as urls:
        async with client_of(urls) as client:
            with pytest.raises(Contradiction, match="two decisions at position 0") as raised:
                await client.submit([request(1), request(2)])
    assert raised.value.answers == (None, None)


async def test_a_contradiction_before_an_unproven_decision_is_evidence() -> None:
    """The reply is refused because of its last decision. The two before it are proven, and not both an outcome."""
    notary = Notary()

    def step(body: bytes) -> bytes:
        *proven, unproven = [{**each, "position": 0} for each in notary.submit(body)]
        return reply(200, {"decisions": [*[{**each, "receipt": receipt_of(each)} for each in proven], unproven]})

    with staged(Attacker(notary, then=step)) as urls, pytest.raises(Contradiction, match="two decisions at position 0") as raised:
        await submit(urls)
    assert raised.value.answers == (None, None, None)


@pytest.mark.parametrize("span", ["\xe9", "00-a\nb", "00-1234"])
async def test_a_trace_that_is_none_is_rejected_before_anything_is_sent(span: str) -> None:
    """A header cannot have such characters, and no server reads such a trace."""
    worker = Worker(Notary(), [])
    with staged(worker) as urls:
        async with client_of(urls) as client:
            with pytest.raises(Malformed, match="W3C Trace Context"):
                await client.submit([request(1)], traceparent=span)
    assert not worker.headers


def test_by_default_the_authorities_of_this_machine_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of a Python package, which differ here."""
    monkeypatch.setattr("certifi.where", lambda: str(Authority("Of the package").put(tmp_path / "package.pem")))
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    used: Any = http_client(None, 3.0)._transport
    serials = [
        {each["serialNumber"] for each in context.get_ca_certs()}
        for context in (ssl.create_default_context(), tls_context(), used._pool._ssl_context)
    ]
    assert serials[0] == serials[1] == serials[2]


def test_an_empty_name_of_a_tls_file_is_a_mistake() -> None:
    """With an unset variable, `--tls-ca "$CA"` must not mean all authorities of this machine."""
    with pytest.raises(ConfigurationError, match="is empty"):
        tls_of(argparse.Namespace(tls_ca="", tls_cert=None, tls_key=None))
