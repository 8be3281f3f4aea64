"""Admission: what a worker lets into the log."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from notary import parties
from notary.admission import CHUNK_MAX, Admission, BadSignature, QuotaExceeded, UnknownParty
from notary.parties import Parties
from ordering.errors import Malformed
from payload import decode_submission
from tests.notary.party import NOTARY, Bank, spend

KNOWN = Bank("O=Known")
OTHER = Bank("O=Other", p256=True)


class Clock:
    """Seconds as the test says."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two parties."""
    parties.write(tmp_path / "p.json", {bank.name: bank.public_pem.decode() for bank in (KNOWN, OTHER)})
    return tmp_path / "p.json"


@pytest.fixture
def admission(file: Path, clock: Clock) -> Iterator[Admission]:
    """Without a quota."""
    made = Admission(NOTARY, Parties(file), 0, clock)
    yield made
    made.close()


@pytest.fixture
def limited(file: Path, clock: Clock) -> Iterator[Admission]:
    """With a quota of 10 requests a second."""
    made = Admission(NOTARY, Parties(file), 10, clock)
    yield made
    made.close()


@pytest.mark.parametrize("bank", [KNOWN, OTHER], ids=["ed25519", "p256"])
async def test_a_good_submission_is_let_in_as_it_was_meant(admission: Admission, bank: Bank) -> None:
    """What comes out is what every worker will decode."""
    body = bank.body(spend(), spend())
    assert await admission.admit(body) == decode_submission(body, NOTARY)


async def test_the_order_of_the_checks(admission: Admission) -> None:
    """First the format, then the party, then the signature: the answer says the first thing that is wrong."""
    with pytest.raises(Malformed):
        await admission.admit(Bank("O=Nobody").body())
    with pytest.raises(UnknownParty, match="O=Nobody"):
        await admission.admit(Bank("O=Nobody").body(spend(), signature=""))
    with pytest.raises(BadSignature):
        await admission.admit(KNOWN.body(spend(), signature=""))


async def test_a_submission_for_another_notary_is_refused(admission: Admission) -> None:
    """A signature counts at the notary that it names."""
    elsewhere = Bank(KNOWN.name, notary="O=Elsewhere")
    elsewhere.key = KNOWN.key
    with pytest.raises(BadSignature):
        await admission.admit(elsewhere.body(spend()))


async def test_many_at_once_each_get_their_own_verdict(admission: Admission) -> None:
    """Verified in chunks, good and bad ones mixed, nobody gets another one's verdict."""
    count = 3 * CHUNK_MAX + 5
    bodies = [(KNOWN if at % 3 else OTHER).body(spend(), **({"signature": "AAAA"} if at % 7 == 0 else {})) for at in range(count)]
    verdicts = await asyncio.gather(*(admission.admit(body) for body in bodies), return_exceptions=True)
    for at, (body, verdict) in enumerate(zip(bodies, verdicts, strict=True)):
        if at % 7 == 0:
            assert isinstance(verdict, BadSignature)
        else:
            assert verdict == decode_submission(body, NOTARY)


async def test_a_client_that_leaves_does_not_disturb_the_others(admission: Admission) -> None:
    """A check that was cancelled takes no other with it."""
    checks = [asyncio.create_task(admission.admit(KNOWN.body(spend()))) for _ in range(20)]
    await asyncio.sleep(0)
    for check in checks[::2]:
        check.cancel()
    done = await asyncio.gather(*checks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in done[::2])
    assert not any(isinstance(each, BaseException) for each in done[1::2])
    await admission.admit(KNOWN.body(spend()))


async def test_a_quota_is_for_each_party(limited: Admission, clock: Clock) -> None:
    """Ten requests a second and no more; another party has its own; time gives it back."""
    ten = KNOWN.body(*(spend() for _ in range(10)))
    await limited.admit(ten)
    with pytest.raises(QuotaExceeded) as refused:
        await limited.admit(KNOWN.body(spend()))
    assert refused.value.retry_after_s >= 1
    await limited.admit(OTHER.body(spend()))
    clock.now_s += 0.1001
    await limited.admit(KNOWN.body(spend()))
    with pytest.raises(QuotaExceeded):
        await limited.admit(KNOWN.body(spend()))


async def test_who_comes_again_when_told_is_let_in(limited: Admission, clock: Clock) -> None:
    """Retry-After is honest, also after a submission larger than the quota, which waits for a full bucket."""
    large = KNOWN.body(*(spend() for _ in range(35)))
    await limited.admit(large)
    for body in (KNOWN.body(spend()), large):
        with pytest.raises(QuotaExceeded) as refused:
            await limited.admit(body)
        clock.now_s += refused.value.retry_after_s
        await limited.admit(body)


async def test_a_bad_signature_uses_up_nobodys_quota(limited: Admission) -> None:
    """Who cannot sign for a party cannot lock it out."""
    for _ in range(30):
        with pytest.raises(BadSignature):
            await limited.admit(KNOWN.body(spend(), signature="AAAA"))
    await limited.admit(KNOWN.body(*(spend() for _ in range(10))))


async def test_what_is_refused_by_quota_uses_none(limited: Admission, clock: Clock) -> None:
    """Asking in vain again and again does not push the time away."""
    await limited.admit(KNOWN.body(*(spend() for _ in range(10))))
    five = KNOWN.body(*(spend() for _ in range(5)))
    for _ in range(4):
        with pytest.raises(QuotaExceeded):
            await limited.admit(five)
        clock.now_s += 0.12
    clock.now_s += 0.03
    await limited.admit(five)


async def test_a_party_taken_out_is_unknown(admission: Admission, file: Path) -> None:
    """After the file's next reading its submissions are refused."""
    await admission.admit(KNOWN.body(spend()))
    left = json.loads(file.read_text())
    del left[KNOWN.name]
    parties.write(file, left)
    admission._parties.reload()
    with pytest.raises(UnknownParty):
        await admission.admit(KNOWN.body(spend()))
