"""The gate: admission of submissions to the log."""

import asyncio
import json
import re
from pathlib import Path

import msgspec
import pytest

from joiner import AdmittedSubmission
from notary import parties
from notary.gate import BadSignature, Body, Gate, Quota, QuotaExceeded, UnknownParty
from notary.parties import Parties
from ordering.errors import Malformed, NotReady
from payload import decode_submission
from tests.notary.party import NOTARY, Bank, spend

KNOWN = Bank("O=Known")
OTHER = Bank("O=Other", p256=True)


class Clock:
    """A clock that the test sets, in seconds."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """A stopped clock."""
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A parties file with two parties."""
    parties.write(tmp_path / "p.json", {bank.name: bank.public_pem.decode() for bank in (KNOWN, OTHER)})
    return tmp_path / "p.json"


class Told(Body):
    """A body that records its result."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(gate)
        self.told: list[AdmittedSubmission | Exception] = []
        self.done = asyncio.get_running_loop().create_future()
        gate.begin(self, None)

    def admitted(self, submission: AdmittedSubmission) -> None:
        """Record that the submission was admitted."""
        self.told.append(submission)
        self.done.set_result(None)

    def refused(self, problem: Exception) -> None:
        """Record that the submission was rejected."""
        self.told.append(problem)
        self.done.set_result(None)


def gate_of(file: Path, clock: Clock, quota_per_s: int = 0) -> Gate:
    """Returns an open gate without a queue behind it."""
    quota = Quota(quota_per_s, clock) if quota_per_s else None
    return Gate(NOTARY, Parties(file), lambda: None, clock, bytes_max=1 << 20, body_s_max=20.0, turn_s_max=0.005, quota=quota)


@pytest.fixture
def gate(file: Path, clock: Clock) -> Gate:
    """A gate without a quota."""
    return gate_of(file, clock)


@pytest.fixture
def limited(file: Path, clock: Clock) -> Gate:
    """A gate with a quota of 10 requests a second."""
    return gate_of(file, clock, 10)


@pytest.mark.parametrize("bank", [KNOWN, OTHER], ids=["ed25519", "p256"])
async def test_a_good_submission_is_let_in_as_it_was_meant(gate: Gate, bank: Bank) -> None:
    """An admitted submission has the ids and bytes that every worker will decode."""
    body = bank.body(spend(), spend())
    assert msgspec.structs.asdict(gate.admit(body)) == msgspec.structs.asdict(decode_submission(body, NOTARY))


async def test_the_order_of_the_checks(gate: Gate) -> None:
    """JSON is checked first, then the party, the format and the signature; the error is the first that applies."""
    with pytest.raises(Malformed, match="not JSON"):
        gate.admit(Bank("O=Nobody").body(spend())[:-1])
    # For an unknown party nothing else is decoded: that would cost fifty times as much.
    with pytest.raises(UnknownParty, match="O=Nobody"):
        gate.admit(Bank("O=Nobody").body())
    for nobody in (b"{}", b'{"party": 7}', b'{"party": null, "requests": []}', b"[]"):
        with pytest.raises(Malformed):
            gate.admit(nobody)
    with pytest.raises(Malformed):
        gate.admit(KNOWN.body(signature=""))
    with pytest.raises(BadSignature):
        gate.admit(KNOWN.body(spend(), signature=""))


async def test_a_submission_for_another_notary_is_refused(gate: Gate) -> None:
    """A signature is valid only at the notary that it names."""
    elsewhere = Bank(KNOWN.name, notary="O=Elsewhere")
    elsewhere.key = KNOWN.key
    with pytest.raises(BadSignature):
        gate.admit(elsewhere.body(spend()))


async def test_many_at_once_each_get_their_own_verdict(gate: Gate) -> None:
    """Many concurrent submissions, good and bad, in pieces and complete, each get their own result."""
    contents = [(KNOWN if at % 3 else OTHER).body(spend(), **({"signature": "AAAA"} if at % 7 == 0 else {})) for at in range(200)]
    bodies = [Told(gate) for _ in contents]
    for at, (body, content) in enumerate(zip(bodies, contents, strict=True)):
        for piece in (content[:at], content[at:]) if at % 2 else (content,):
            body.piece(piece)
        body.whole()
    await asyncio.gather(*(body.done for body in bodies))
    for at, (body, content) in enumerate(zip(bodies, contents, strict=True)):
        (told,) = body.told
        if at % 7 == 0:
            assert isinstance(told, BadSignature)
        else:
            assert isinstance(told, AdmittedSubmission)
            assert msgspec.structs.asdict(told) == msgspec.structs.asdict(decode_submission(content, NOTARY))
    assert gate.body_bytes == 0


async def test_a_client_that_leaves_does_not_disturb_the_others(gate: Gate) -> None:
    """After a client leaves, its submission, complete or not, gets no result and uses no memory."""
    bodies = [Told(gate) for _ in range(20)]
    for at, body in enumerate(bodies):
        body.piece(KNOWN.body(spend()))
        if at % 4:
            body.whole()
    for body in bodies[::2]:
        body.left()
    await asyncio.gather(*(body.done for at, body in enumerate(bodies) if at % 4 in (1, 3)))
    assert not any(body.told for body in bodies[::2])
    assert gate.body_bytes == 0


async def test_what_the_gate_has_not_let_in_when_the_end_begins_stays_out(gate: Gate) -> None:
    """A stopping worker rejects incomplete and unchecked submissions: no code would answer them after admission."""
    half, whole = Told(gate), Told(gate)
    half.piece(b"{")
    whole.piece(KNOWN.body(spend()))
    whole.whole()
    gate.stop()
    await asyncio.sleep(0)
    for body in (half, whole):
        (told,) = body.told
        assert isinstance(told, NotReady)


def test_only_the_gate_admits() -> None:
    """Only the gate creates an `AdmittedSubmission`, so that all reasons for a rejection are in one file."""
    root = Path(__file__).parents[2]
    made = re.compile(r"AdmittedSubmission(\.of)?\(")
    files = [file for room in ("joiner", "notary", "payload") for file in (root / room).rglob("*.py")]
    makers = {str(file.relative_to(root)) for file in files if made.search(file.read_text().replace("class AdmittedSubmission(", ""))}
    assert makers == {"notary/gate.py"}


async def test_a_quota_is_for_each_party(limited: Gate, clock: Clock) -> None:
    """Ten requests a second are admitted and no more; another party has its own quota; time restores it."""
    ten = KNOWN.body(*(spend() for _ in range(10)))
    limited.admit(ten)
    with pytest.raises(QuotaExceeded) as refused:
        limited.admit(KNOWN.body(spend()))
    assert refused.value.retry_after_s >= 1
    limited.admit(OTHER.body(spend()))
    clock.now_s += 0.1001
    limited.admit(KNOWN.body(spend()))
    with pytest.raises(QuotaExceeded):
        limited.admit(KNOWN.body(spend()))


async def test_who_comes_again_when_told_is_let_in(limited: Gate, clock: Clock) -> None:
    """After the time of Retry-After the submission is admitted, even one larger than the quota, which waits for a full bucket."""
    large = KNOWN.body(*(spend() for _ in range(35)))
    limited.admit(large)
    for body in (KNOWN.body(spend()), large):
        with pytest.raises(QuotaExceeded) as refused:
            limited.admit(body)
        clock.now_s += refused.value.retry_after_s
        limited.admit(body)


async def test_a_bad_signature_uses_up_nobodys_quota(limited: Gate) -> None:
    """A submission with a bad signature uses no quota, so a stranger cannot lock a party out."""
    for _ in range(30):
        with pytest.raises(BadSignature):
            limited.admit(KNOWN.body(spend(), signature="AAAA"))
    limited.admit(KNOWN.body(*(spend() for _ in range(10))))


async def test_what_is_refused_by_quota_uses_none(limited: Gate, clock: Clock) -> None:
    """A submission rejected by quota uses none, so that retries do not extend the wait."""
    limited.admit(KNOWN.body(*(spend() for _ in range(10))))
    five = KNOWN.body(*(spend() for _ in range(5)))
    for _ in range(4):
        with pytest.raises(QuotaExceeded):
            limited.admit(five)
        clock.now_s += 0.12
    clock.now_s += 0.03
    limited.admit(five)


async def test_a_party_taken_out_is_unknown(gate: Gate, file: Path) -> None:
    """A removed party is rejected once the file has been read again."""
    gate.admit(KNOWN.body(spend()))
    left = json.loads(file.read_text())
    del left[KNOWN.name]
    parties.write(file, left)
    gate._parties.reload()
    with pytest.raises(UnknownParty):
        gate.admit(KNOWN.body(spend()))
