"""The quota of each party: a token bucket of one second."""

from pathlib import Path

import msgspec
import pytest

from notary import parties
from notary.parties import Parties
from notary.quota import LATE_S, Quota, QuotaExceeded, QuotaSettings
from tests.notary.party import Bank
from tests.notary.test_gate import Clock

KNOWN, OTHER = "O=Known", "O=Other"
TEN_A_SECOND = QuotaSettings(party_requests_per_s=10)


@pytest.fixture
def clock() -> Clock:
    """A stopped clock."""
    return Clock()


@pytest.fixture
def quota(clock: Clock) -> Quota:
    """Ten requests a second for each party."""
    return Quota(TEN_A_SECOND, clock)


def send(quota: Quota, party: str, requests: int) -> QuotaExceeded | None:
    """Send a new submission as the gate does: charge it, or reserve its tokens."""
    rejection = quota.rejection(party, requests, reserve=True)
    if rejection is None:
        quota.charge(party, requests)
    return rejection


def test_a_quota_is_for_each_party(quota: Quota, clock: Clock) -> None:
    """Ten requests a second are admitted and no more; another party has its own quota; time restores it."""
    assert send(quota, KNOWN, 10) is None
    rejected = send(quota, KNOWN, 1)
    assert rejected is not None
    assert rejected.retry_after_s >= 1
    assert send(quota, OTHER, 1) is None
    clock.now_s += 0.1001
    assert send(quota, KNOWN, 1) is None
    assert send(quota, KNOWN, 1) is not None


def test_a_retry_after_the_time_that_the_rejection_names_is_admitted(quota: Quota, clock: Clock) -> None:
    """After the time of Retry-After the submission is admitted, even one larger than the quota, which waits for a full bucket."""
    assert send(quota, KNOWN, 35) is None
    for requests in (1, 35):
        rejected = send(quota, KNOWN, requests)
        assert rejected is not None
        clock.now_s += rejected.retry_after_s
        assert send(quota, KNOWN, requests) is None


def test_what_is_rejected_by_quota_uses_none(quota: Quota, clock: Clock) -> None:
    """A submission rejected by quota uses none, so that retries do not extend the wait."""
    assert send(quota, KNOWN, 10) is None
    for _ in range(4):
        assert send(quota, KNOWN, 5) is not None
        clock.now_s += 0.12
    clock.now_s += 0.03
    assert send(quota, KNOWN, 5) is None


def test_a_party_may_have_a_quota_of_its_own(tmp_path: Path, clock: Clock) -> None:
    """A party's own quota replaces the configured one, and 0 is none; a change is effective once the file has been read again."""
    file = tmp_path / "parties.json"
    parties.write(file, {name: Bank(name).public_pem.decode() for name in (KNOWN, OTHER)})
    known = Parties(file)
    quota = Quota(TEN_A_SECOND, clock, known.requests_per_s_of)
    entries = parties.read(file)

    def sends(party: str) -> list[bool]:
        admitted = [send(quota, party, 15) is None for _ in range(2)]
        clock.now_s += 60
        return admitted

    for own, expected in ((None, [True, False]), (20, [True, False]), (30, [True, True]), (0, [True, True])):
        parties.write(file, entries | {KNOWN: msgspec.structs.replace(entries[KNOWN], requests_per_s=own)})
        known.reload()
        assert (sends(KNOWN), sends(OTHER)) == (expected, [True, False])


def test_a_large_submission_is_admitted_after_its_wait(quota: Quota, clock: Clock) -> None:
    """Its rejection reserves tokens. Meanwhile other clients of its party send small ones all the time, and get what is left."""
    small = 0
    for large in (10, 35):
        quota.charge(KNOWN, 10)
        rejected = send(quota, KNOWN, large)
        assert rejected is not None
        for _ in range(rejected.retry_after_s * 10 + 5):
            clock.now_s += 0.1
            small += send(quota, KNOWN, 1) is None
        assert send(quota, KNOWN, large) is None
        clock.now_s += 10
    assert not small


def test_what_is_left_over_is_not_reserved(quota: Quota, clock: Clock) -> None:
    """A rejected submission reserves its own tokens only, until shortly after it may come again."""
    assert send(quota, KNOWN, 6) is None
    assert send(quota, KNOWN, 5) is not None
    assert send(quota, KNOWN, 1) is not None
    clock.now_s += 0.2001
    assert send(quota, KNOWN, 1) is None
    rejected = send(quota, KNOWN, 1)
    assert rejected is not None
    clock.now_s += 1 + LATE_S
    assert [send(quota, KNOWN, 1) is None for _ in range(11)] == [True] * 10 + [False]


def test_an_unverified_submission_reserves_nothing(quota: Quota) -> None:
    """Anybody may name a party, so only a signed submission reserves."""
    assert send(quota, KNOWN, 5) is None
    assert quota.rejection(KNOWN, 9) is not None
    assert send(quota, KNOWN, 5) is None
    assert send(quota, KNOWN, 9) is not None


def test_a_smaller_submission_does_not_extend_a_reservation(quota: Quota, clock: Clock) -> None:
    """A large one is rejected and does not come again. Others are rejected meanwhile, and the reservation ends when it was to end."""
    assert send(quota, KNOWN, 10) is None
    assert send(quota, KNOWN, 10) is not None
    clock.now_s += 0.85
    assert send(quota, KNOWN, 9) is not None
    clock.now_s += 0.15 + LATE_S
    assert send(quota, KNOWN, 9) is None


def test_an_admitted_submission_gives_its_reservation_back(quota: Quota, clock: Clock) -> None:
    """It comes again in time. From then on smaller ones get each new token, before the reservation was to end."""
    assert send(quota, KNOWN, 10) is None
    rejected = send(quota, KNOWN, 10)
    assert rejected is not None
    clock.now_s += rejected.retry_after_s
    assert send(quota, KNOWN, 10) is None
    clock.now_s += LATE_S / 2
    assert send(quota, KNOWN, 5) is None
