"""An outcome without a valid receipt does not count, for `notary submit` and the client; a proxy before a real worker changes outcomes."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from notary import keys
from notary.cli import main
from notary.client import AsyncClient, Client, KnownNotaries, Signer, Unproven
from notary.verify import verify_receipt
from ordering.errors import ConfigurationError
from tests.notary.cli.command import Command
from tests.notary.hostile_proxy import HostileProxy, hostile_proxy
from tests.notary.party import NOTARY, Bank, fresh_state, spend
from tests.notary.process import NotaryDirectory, NotaryProcess


def key_of(directory: NotaryDirectory, origin: str = "notary.example/test") -> str:
    return keys.verifier_key(origin, keys.load(directory.path / "notary-key.pem").public_key())


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, bank: Bank) -> Iterator[NotaryProcess]:
    """Another notary of the same name, with another origin and key: it decides the same submissions, and proves its decisions."""
    directory = NotaryDirectory.create(tmp_path_factory.mktemp("elsewhere") / "notary", origin="notary.example/other")
    directory.register(bank)
    with NotaryProcess.start(directory.config) as process:
        yield process


@pytest.fixture
def proxy(worker: NotaryProcess) -> Iterator[HostileProxy]:
    with hostile_proxy(worker.url) as made:
        yield made


@pytest.fixture
def submit(tmp_path: Path, bank: Bank, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs `notary submit` for the bank."""
    (tmp_path / "bank.pem").touch(mode=0o600)
    (tmp_path / "bank.pem").write_bytes(bank.private_pem)
    return Command(capfd, "submit", "--party", bank.name, "--key", tmp_path / "bank.pem")


def write(tmp_path: Path, *requests: dict[str, Any]) -> str:
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(each) + "\n" for each in requests))
    return str(tmp_path / "requests.jsonl")


def missing(decisions: list[dict[str, Any]]) -> None:
    del decisions[0]["receipt"]


def cut_off(decisions: list[dict[str, Any]]) -> None:
    decisions[0]["receipt"] = decisions[0]["receipt"][:-2]


def of_the_other(decisions: list[dict[str, Any]]) -> None:
    decisions[0]["receipt"] = decisions[1]["receipt"]


def at_the_others_position(decisions: list[dict[str, Any]]) -> None:
    of_the_other(decisions)
    decisions[0]["position"], decisions[1]["position"] = decisions[1]["position"], decisions[0]["position"]


def committed_after_all(decisions: list[dict[str, Any]]) -> None:
    decisions[0] |= {"outcome": "committed", "reason": None, "conflicts": []}


def another_time(decisions: list[dict[str, Any]]) -> None:
    for decision in decisions:  # together: log time never falls
        decision["log_time"] += 1


def badly_signed(decisions: list[dict[str, Any]]) -> None:
    lines = decisions[0]["receipt"].split("\n")
    letter = lines[-2][-20]
    lines[-2] = lines[-2][:-20] + ("A" if letter != "A" else "B") + lines[-2][-19:]
    decisions[0]["receipt"] = "\n".join(lines)


LIES: dict[str, tuple[Callable[[list[dict[str, Any]]], None], str]] = {
    "missing": (missing, "malformed-receipt: the decision came without a receipt"),
    "cut off": (cut_off, "malformed-checkpoint: "),
    "of another request": (of_the_other, "wrong-position: "),
    "of another request, at its position": (at_the_others_position, "wrong-root: "),
    "a changed outcome": (committed_after_all, "wrong-root: "),
    "a changed time": (another_time, "wrong-root: "),
    "a bad signature": (badly_signed, "bad-signature: "),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_no_outcome(
    lie: str, proxy: HostileProxy, worker: NotaryProcess, notary_directory: NotaryDirectory, submit: Command, tmp_path: Path, bank: Bank
) -> None:
    """An unproven outcome gives exit 1, no output, and an error with URL and reason; with an honest worker it costs an attempt only."""
    proxy.change, reason = LIES[lie]
    coin = fresh_state()
    key = key_of(notary_directory)
    with Client([worker.url], bank.name, Signer(bank.sign), verifier_keys=key) as client:
        client.submit([spend(coin)])
    twice, single = spend(coin), spend()
    given = [write(tmp_path, twice, single), "--verifier-key", key, "--deadline", "60", "--url"]
    assert submit.run(*given, proxy.url, code=1) == ""
    assert f"{proxy.url} returned an outcome for transaction " in submit.err
    assert f"that is not proven, so it does not count: {reason}" in submit.err
    assert "outcome unknown: " in submit.err
    assert proxy.posts == 1
    # The API raises the same error, and accepts the proven outcomes of an honest worker.
    with Client([proxy.url], bank.name, Signer(bank.sign), verifier_keys=key) as client, pytest.raises(Unproven) as caught:
        client.submit([twice, single])
    assert reason.startswith(caught.value.reason)
    assert caught.value.answers[0] is None
    assert caught.value.url == proxy.url
    printed = [json.loads(line) for line in submit.run(*given, f"{proxy.url},{worker.url}").splitlines()]
    assert [each["outcome"] for each in printed] == ["rejected", "committed"]
    assert proxy.posts == 3
    for each in printed:
        verify_receipt(each["receipt"], each, key)


def test_a_receipt_of_another_notary(
    worker: NotaryProcess, elsewhere: NotaryProcess, notary_directory: NotaryDirectory, submit: Command, tmp_path: Path
) -> None:
    """Another notary proves its decisions with its own key: exit 1 with both keys, also before submitting when the name is looked up."""
    given = [write(tmp_path, spend()), "--verifier-key", key_of(notary_directory), "--url", elsewhere.url]
    assert submit.run(*given, "--notary-name", NOTARY, code=1) == ""
    assert re.search(r"count: wrong-origin: signed by .{0,3}notary\.example/other", submit.err), submit.err
    assert "those are the keys that were given" in submit.err
    assert f"{elsewhere.url} returned a verifier key that is not proven" in submit.refuses(*given, code=1)


@pytest.mark.seconds
def test_what_was_proven_is_written(proxy: HostileProxy, notary_directory: NotaryDirectory, submit: Command, tmp_path: Path) -> None:
    """The first of two submissions is proven and written; the second is not, and its request is named: exit 1, not 0."""
    proxy.change = lambda decisions: missing(decisions) if proxy.posts == 2 else None
    flags = ["--verifier-key", key_of(notary_directory), "--url", proxy.url, "--batch", "1"]
    assert len(submit.run(write(tmp_path, spend(), spend(), spend()), *flags, code=1).splitlines()) == 1
    assert "requests.jsonl line 2" in submit.err
    assert "1 requests decided: 1 committed, 0 rejected, 1 unknown" in submit.err


async def test_a_looked_up_transaction_is_proven(
    worker: NotaryProcess, proxy: HostileProxy, notary_directory: NotaryDirectory, bank: Bank
) -> None:
    """A look-up fetches and verifies the receipt; a receipt that does not prove the decision is an error."""
    async with AsyncClient([proxy.url], bank.name, Signer(bank.sign), verifier_keys=key_of(notary_directory)) as client:
        [one, other] = await client.submit([spend(), spend()])
        assert await client.transaction(one.transaction_id) == one
        proxy.receipt = lambda receipt: receipt.replace(b"index ", b"index 1")
        with pytest.raises(Unproven, match="wrong-position"):
            await client.transaction(other.transaction_id)
        assert (await client.transaction(other.transaction_id, receipts=False)) is not None


def test_trust_on_first_use(
    worker: NotaryProcess, elsewhere: NotaryProcess, proxy: HostileProxy, notary_directory: NotaryDirectory, submit: Command, tmp_path: Path
) -> None:
    """The first use warns and stores the key; later uses print nothing; another notary at the same URL is rejected."""
    known = tmp_path / "folder" / "known"
    given = [write(tmp_path, spend()), "--known-notaries", known, "--url"]
    both = f"{proxy.url},{worker.url}/"
    assert len(submit.run(*given, both).splitlines()) == 1
    key = key_of(notary_directory)
    assert "notary submit: WARNING: first use of " in submit.err
    assert f"verifier key {key} is trusted from now on, and kept in {known}" in submit.err
    name = json.dumps(NOTARY)
    assert known.read_text().splitlines()[1:] == [f"{proxy.url} {key} {name}", f"{worker.url} {key} {name}"]
    assert known.stat().st_mode & 0o777 == 0o600
    submit.run(*given, both)
    assert "WARNING" not in submit.err
    before, proxy.posts, proxy.target = known.read_text(), 0, elsewhere.url
    assert submit.run(*given, proxy.url, code=1) == ""
    assert "unknown-key: it shows the key notary.example/other+" in submit.err
    assert f"by {known}, line 2. If the notary was made anew" in submit.err
    assert proxy.posts == 0
    assert submit.run(*given, proxy.url, "--notary-name", NOTARY, code=1) == ""
    proxy.posts, proxy.target, proxy.described = 0, worker.url, {"name": "O=Another"}
    assert submit.run(*given, proxy.url, code=1) == ""
    assert "it calls itself 'O=Another'" in submit.err
    assert proxy.posts == 0
    assert known.read_text() == before


@pytest.mark.seconds
def test_a_rotated_key_is_followed(own_directory: NotaryDirectory, submit: Command, tmp_path: Path) -> None:
    """A key that the known one endorsed is trusted: reported and stored after a first use, silent for a given key; never backwards."""
    known, first = tmp_path / "known", key_of(own_directory)
    with NotaryProcess.start(own_directory.config) as process, hostile_proxy(process.url) as proxy:
        given = [write(tmp_path, spend()), "--url", proxy.url]
        submit.run(*given, "--known-notaries", known)
        process.stop()
        assert main(["key", "rotate", "--config", str(own_directory.config)]) == 0
        second = key_of(own_directory)
        with NotaryProcess.start(own_directory.config) as again:
            proxy.target = again.url
            submit.run(*given, "--known-notaries", known)
            assert f"has a new verifier key, endorsed by the one before: {second}, kept in {known}" in submit.err
            for flags in (["--known-notaries", known], ["--verifier-key", first, "--notary-name", NOTARY], ["--verifier-key", first]):
                submit.run(*given, *flags)
                assert "new verifier key" not in submit.err
            proxy.described = {"keys": [{"verifier_key": first, "endorsement": None}]}
            assert "unknown-key: it shows the key" in submit.refuses(*given, "--verifier-key", first, code=1)
    assert [line.split(" ")[1] for line in known.read_text().splitlines()[1:]] == [first, second]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense\n", r"line 1, is not a URL, a verifier key and a name: .*\. Correct it, or remove it"),
        ('URL notary.example/x+00000000+AAAA "O=N"\n', "line 1, is not"),
        ("URL KEY O=N\n", "line 1, is not"),
        (b"\xff", "cannot be used"),
        (None, "cannot be used: Is a directory. Give the notary's verifier key"),
    ],
)
def test_a_file_that_cannot_be_used(content: str | bytes | None, message: str, tmp_path: Path) -> None:
    """A damaged file gives an error with its line and the remedy, and no key is trusted on first use."""
    file = tmp_path / "known"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigurationError, match=message):
        KnownNotaries(file).find(["http://a"])


def test_a_file_that_anybody_writes(tmp_path: Path) -> None:
    """A file that every user may write is rejected, since its writers choose the trusted keys."""
    file = tmp_path / "known"
    file.touch()
    file.chmod(0o666)
    with pytest.raises(ConfigurationError, match=r"every user can write .*chmod 600"):
        KnownNotaries(file).find(["http://a"])


def test_the_given_path_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file's path is the given one; else `NOTARY_KNOWN_NOTARIES`; else in the user's configuration folder."""
    assert KnownNotaries(tmp_path / "x").file == tmp_path / "x"
    monkeypatch.setenv("NOTARY_KNOWN_NOTARIES", str(tmp_path / "y"))
    assert KnownNotaries().file == tmp_path / "y"
    monkeypatch.delenv("NOTARY_KNOWN_NOTARIES")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert KnownNotaries().file == tmp_path / "notary/known-notaries"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert KnownNotaries().file == tmp_path / ".config/notary/known-notaries"


def test_a_key_with_a_wrong_letter(submit: Command, tmp_path: Path) -> None:
    """A mistyped key gives exit 2 before anything is sent, since it is the caller's mistake."""
    given = ["--url", "http://127.0.0.1:9", "--verifier-key", "notary.example/x+1+A"]
    assert "the verifier key: " in submit.refuses(write(tmp_path, spend()), *given)
