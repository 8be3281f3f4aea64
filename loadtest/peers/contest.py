"""Checks that a peer is correct, before and after it is measured: a peer that spends a state twice fails, however fast it is.

`contest` makes many clients compete for few states at once, and compares the answers. At most one transaction commits with a state, every
rejection names an input that a committed transaction consumed, and sending again changes nothing. `recheck` tries to spend some of a load's
states once more, and sends their submissions again.

The answers are decoded from the contract alone, without position, log time and receipt, which only the notary has.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from random import Random
from typing import Final

import msgspec

from loadtest.openloop.checker import ReceivedConflict, hashed
from loadtest.rig.closed_loop import ClosedLoop, GeneratedSubmissions
from loadtest.rig.connections import body_of, status_of
from loadtest.rig.generate import party_key, submissions
from loadtest.rig.signing import NOTARY, PARTY, Made, SubmissionSigner
from ordering.ids import parse_state

CLIENTS: Final = 16
SECONDS_MAX: Final = 120.0
STATES: Final = 40
SUBMISSIONS: Final = 80
RECHECKED: Final = 20


class ContestDecision(msgspec.Struct, frozen=True):
    """A decision, with the members that all peers return."""

    transaction_id: str
    outcome: str
    conflicts: tuple[ReceivedConflict, ...]


class _Decisions(msgspec.Struct):
    decisions: list[ContestDecision]


_decode_answer = msgspec.json.Decoder(_Decisions).decode


def contest(url: str, seed: int) -> list[str]:
    """Returns the errors in the answers to clients that compete for few states; empty when there are none."""
    return asyncio.run(_contest(url, seed))


def recheck(url: str, seed: int, requests: int, inputs: int) -> list[str]:
    """Sends the first submissions of a fully committed load again, and tries to spend their states once more. Returns the errors."""
    return asyncio.run(_recheck(url, seed, requests, inputs))


async def _contest(url: str, seed: int) -> list[str]:
    random = Random(seed)
    writer = _writer()
    states = [random.randbytes(32) + bytes(4) for _ in range(STATES)]
    made: list[Made] = []
    for at in range(SUBMISSIONS):
        requests = [
            writer.request(sorted(random.sample(states, random.randint(1, 4))), random.randbytes(32))
            # One in three submissions has several requests, with states that others want and that it wants itself.
            for _ in range(10 if at % 3 == 0 else 1)
        ]
        made.append(_joined(writer, requests))
    # Some are sent twice, by two clients.
    asked = made + made[: SUBMISSIONS // 4]
    random.shuffle(asked)
    first, problems = await ask(url, asked)
    if problems:
        return problems
    again, problems = await ask(url, made)
    inputs = _inputs_of(made)
    return problems + double_spends(inputs, first) + changed(first, again)


async def _recheck(url: str, seed: int, requests: int, inputs: int) -> list[str]:
    writer = _writer()
    made = list(islice(submissions(seed, requests, inputs), RECHECKED))
    content = sha256(b"%d again" % seed).digest()
    double_spending: list[Made] = []
    for each in made:
        requests_again = [writer.request([parse_state(text) for text in states], content) for states in _inputs_of([each]).values()]
        double_spending.append(_joined(writer, requests_again))
    # Double spends first: a peer that has forgotten the load would commit them.
    answered, problems = await ask(url, double_spending)
    again, more = await ask(url, made)
    problems += more
    problems += [f"{each.transaction_id} was committed, and is now {each.outcome}" for each in again if each.outcome != "committed"]
    problems += [f"{each.transaction_id} spends what was spent before" for each in answered if each.outcome != "rejected"]
    return problems + double_spends(_inputs_of([*made, *double_spending]), [*again, *answered])


async def ask(url: str, asked: Iterable[Made]) -> tuple[list[ContestDecision], list[str]]:
    """Send all submissions, several at once; returns (all decisions, the errors)."""
    decisions: list[ContestDecision] = []

    def check(answer: bytes, ids: bytes) -> str | None:
        if status_of(answer) != 200:
            return answer[:300].decode(errors="replace")
        answered = _decode_answer(body_of(answer)).decisions
        decisions.extend(answered)
        if "".join([one.transaction_id for one in answered]) != ids.hex():
            return "the answer's transaction ids are not those of the submission, in its order"
        return None

    loop = ClosedLoop(GeneratedSubmissions(asked), check)
    await loop.connect([url], CLIENTS, receipts=False)
    await loop.run(SECONDS_MAX)
    return decisions, loop.failures.first


def double_spends(inputs: Mapping[str, Sequence[str]], decisions: Sequence[ContestDecision]) -> list[str]:
    """Returns the states with which two transactions committed, and rejections without a reason."""
    consumer: dict[str, str] = {}
    committed = [each.transaction_id for each in decisions if each.outcome == "committed"]
    problems = [
        f"{state} was spent twice: by {consumer[state]} and by {id_}"
        for id_ in committed
        for state in inputs[id_]
        if consumer.setdefault(state, id_) != id_
    ]
    for each in decisions:
        if (each.outcome == "committed") != (not each.conflicts):
            problems.append(f"{each.transaction_id} is {each.outcome} with {len(each.conflicts)} conflicts")
        for conflict in each.conflicts:
            by = consumer.get(conflict.state)
            if conflict.state not in inputs[each.transaction_id] or by is None or conflict.consumed_by != hashed(by):
                problems.append(f"{each.transaction_id} was rejected for {conflict.state}, which was consumed by {by}")
    return problems


def changed(first: Sequence[ContestDecision], again: Sequence[ContestDecision]) -> list[str]:
    """Returns the transactions whose outcome changed. A peer that does not record rejections may report more conflicts the second time."""
    problems: list[str] = []
    last = {each.transaction_id: each for each in again}
    for each in first:
        now = last[each.transaction_id]
        if now.outcome != each.outcome or not set(each.conflicts) <= set(now.conflicts):
            problems.append(f"{each.transaction_id} was {each.outcome}, and is now {now.outcome}, or for other reasons")
    return problems


def _inputs_of(made: Sequence[Made]) -> dict[str, Sequence[str]]:
    """Returns the inputs of each transaction, by its id, in the order of the requests."""
    return {
        each.ids[32 * at : 32 * at + 32].hex(): request["inputs"]
        for each in made
        for at, request in enumerate(msgspec.json.decode(each.body)["requests"])
    }


def _writer() -> SubmissionSigner:
    return SubmissionSigner(NOTARY, PARTY, party_key().sign)


def _joined(writer: SubmissionSigner, requests: Sequence[tuple[str, bytes]]) -> Made:
    return writer.submission([text for text, _ in requests], [id_ for _, id_ in requests])
