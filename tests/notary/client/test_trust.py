"""The file of known notaries, and the keys that follow from those in it."""

import fcntl
import os
import resource
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.client import KnownNotaries, Unproven
from notary.client.answers import NotaryDescription
from notary.client.trust import Trust
from notary.receipts import VerifierKey
from notary.receipts.errors import NotVerified
from notary.receipts.key_history import endorse
from notary.wire import HistoricKey
from ordering import durable
from ordering.errors import ConfigurationError
from tests.notary.client.scripted import KEY, NAME, ORIGIN, VERIFIER, VERIFIER_KEY, Notary, request, staged
from tests.notary.client.test_client import client_of
from tests.notary.client.test_client_hostile import SECOND, THIRD, Attacker, decided_with, key_of, rotated_to

A, B = "http://a:8080", "http://b:8080"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The name of a file that is not there yet."""
    return tmp_path / "known"


def trust(file: Path, *urls: str) -> Trust:
    """Returns the trust of a new program with these URLs."""
    return Trust(urls, (), KnownNotaries(file, lambda text: None))


def described(key: str = VERIFIER_KEY) -> NotaryDescription:
    """Returns the description of a notary with this key only."""
    return NotaryDescription(name=NAME, origin=ORIGIN, verifier_key=key)


def rotated() -> NotaryDescription:
    """Returns the description of the same notary after a rotation."""
    shown: Any = rotated_to(SECOND)
    keys = tuple([HistoricKey(**each) for each in shown["keys"]])
    return NotaryDescription(name=NAME, origin=ORIGIN, verifier_key=shown["verifier_key"], keys=keys)


def test_a_rotation_seen_through_one_url_counts_for_the_others(file: Path) -> None:
    """All lines with the former key get the new one. So does a client that runs, and has met the former key."""
    running = trust(file, A, B)
    running.meet(described())
    trust(file, A).meet(rotated())
    assert [line.key for line in KnownNotaries(file).find([A, B])] == [key_of(SECOND)]
    assert running.meet(rotated())
    both = trust(file, A, B)
    both.meet(rotated())
    assert both.keys == [key_of(SECOND)]


def test_a_first_use_after_a_rotation_fits_the_former_key(file: Path) -> None:
    """One program met the notary before a rotation, another one after it. A program with both URLs needs the endorsement."""
    trust(file, A).meet(described())
    trust(file, B).meet(rotated())
    for urls in ((A, B), (B, A)):
        with pytest.raises(NotVerified, match="has different keys"):
            trust(file, *urls).meet(described())
    both = trust(file, A, B)
    both.meet(rotated())
    assert both.keys == [VERIFIER, key_of(SECOND)], "the former key proves earlier receipts"
    assert [line.key for line in KnownNotaries(file).find([A, B])] == [key_of(SECOND)]


def test_keys_that_nothing_endorses_are_not_of_one_notary(file: Path) -> None:
    """An attacker at the second URL was met first there: it is not trusted with the notary of the first one."""
    trust(file, A).meet(described())
    attacker = key_of(Ed25519PrivateKey.generate())
    trust(file, B).meet(described(str(attacker)))
    for urls in ((A, B), (B, A)):
        both = trust(file, *urls)
        for shown in (described(), rotated(), described(str(attacker)), described()):
            with pytest.raises(NotVerified, match="has different keys"):
                both.meet(shown)
        assert not both.keys


async def test_a_new_key_that_cannot_be_kept_leaves_the_outcome_unknown(file: Path) -> None:
    """The submission is decided under the new key. The error has its ids, and says that the file cannot be written."""
    notary = Notary()
    worker = Attacker(notary, described={"verifier_key": VERIFIER_KEY})
    with staged(worker) as urls:
        async with client_of(urls, verifier_keys=(), known_notaries=KnownNotaries(file, lambda text: None)) as client:
            await client.submit([request(1)])
            worker.described, worker.then = rotated_to(SECOND), decided_with(notary, SECOND)  # type: ignore[assignment]
            file.write_text("no line of such a file")
            with pytest.raises(Unproven, match=r"its new key cannot be kept: .*, line 1, is not a URL") as raised:
                await client.submit([request(2)], deadline_s=5)
    assert len(raised.value.transaction_ids) == 1


@pytest.mark.parametrize("before", ["# our notaries", "# Notaries whose veri"], ids=["edited by hand", "cut off by a crash"])
def test_a_first_use_is_kept_after_a_line_without_its_end(before: str, file: Path) -> None:
    """The second use is no first use, and another key is rejected."""
    file.write_text(before)
    trust(file, A).meet(described())
    with pytest.raises(NotVerified, match="does not follow"):
        trust(file, A).meet(described(str(key_of(Ed25519PrivateKey.generate()))))


def test_a_first_use_is_durable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power loss, the next use must not be a first one again: the line and the new file's name are synced."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    trust(file, A).meet(described())
    assert synced == [str(file), str(file.parent)]


def test_a_line_without_its_end_does_not_spoil_the_next_one(file: Path) -> None:
    """A crash may cut a write just before the end of its line."""
    trust(file, A).meet(described())
    file.write_text(file.read_text()[:-1])
    trust(file, B).meet(described())
    assert [line.line for line in KnownNotaries(file).find([B])] == [3]
    assert KnownNotaries(file).find([A])


def test_a_full_disk_leaves_no_part_of_a_line(file: Path) -> None:
    """A part of a line would make the file unusable, also for notaries that are known. Once there is space the notary is met."""
    trust(file, A).meet(described())
    before, (limit, most) = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, most))
    try:
        with pytest.raises(ConfigurationError, match=r"the known notaries .* cannot be used"):
            trust(file, B).meet(described())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    assert file.read_bytes() == before
    trust(file, B).meet(described())
    assert KnownNotaries(file).find([B])


def test_a_first_use_shows_no_control_characters(file: Path) -> None:
    """A key's name may have some, which would remove the warning from the terminal."""
    shown: list[str] = []
    key = VerifierKey("notary.example\x9b2K\x9b1A\u202e", VERIFIER.public_key)
    Trust([A], (), KnownNotaries(file, shown.append)).meet(described(str(key)))
    assert shown[0].isprintable()


def test_a_lock_that_is_held_for_long_is_reported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program was stopped while it held the lock."""
    monkeypatch.setattr("notary.client.trust.LOCK_S", 0.05)
    assert durable.LOCK_S <= 5
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="another program has locked"):
            trust(file, A).meet(described())


def history_of(*chain: Ed25519PrivateKey) -> tuple[HistoricKey, ...]:
    """Returns a key history in which each key endorses the one behind it."""
    first = HistoricKey(str(key_of(chain[0])), None)
    return (first, *[endorse(key_of(one), one, key_of(other)) for one, other in pairwise(chain)])


def test_a_second_rotation_is_kept(file: Path) -> None:
    """The lines of the two URLs have different keys, and the notary shows a third one."""
    trust(file, A).meet(described())
    trust(file, B).meet(rotated())
    notary = described(str(key_of(THIRD)))
    trust(file, A, B).meet(msgspec.structs.replace(notary, keys=history_of(KEY, SECOND, THIRD)))
    assert [line.key for line in KnownNotaries(file).find([A, B])] == [key_of(THIRD)]


def test_a_former_key_of_the_file_endorses_no_other(file: Path) -> None:
    """The line of one URL shows that the key of the other one was replaced. Its thief shows a history that begins with it twice."""
    trust(file, A).meet(described())
    trust(file, B).meet(rotated())
    thief = msgspec.structs.replace(described(str(key_of(THIRD))), keys=(*history_of(KEY, SECOND), *history_of(KEY, THIRD)))
    with pytest.raises(NotVerified):
        trust(file, A, B).meet(thief)
