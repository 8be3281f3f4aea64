"""`notary key`: its output, and a rotation between two worker incarnations. `test_keys.py` has killed rotations."""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from notary import keys
from notary.verify import NotVerified, trusted_keys, verify_receipt
from ordering.durable import move_into_place
from tests.notary.cli.command import Command
from tests.notary.cli.written import die
from tests.notary.http.checked_client import CheckedClient, serving
from tests.notary.party import Bank, spend
from tests.notary.process import NotaryDirectory

ORIGIN = "notary.example/test"


@pytest.fixture
def key(directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `notary key` there."""
    return Command(capsys, "key", config=directory.config)


def put_back(files: Mapping[Path, bytes]) -> None:
    """Restore files as they were on this machine, or are on another one."""
    for file, content in files.items():
        file.write_bytes(content)
        file.chmod(0o600)


def present_key(directory: NotaryDirectory) -> str:
    """Returns the verifier key of the key file."""
    return keys.verifier_key(ORIGIN, keys.load(directory.path / "notary-key.pem").public_key())


def test_show_prints_the_present_key_and_the_history(directory: NotaryDirectory, key: Command) -> None:
    """`show` prints a line for each key, from the first to the present one, or the JSON form of `GET /v1/notary`."""
    first = present_key(directory)
    assert key.json("show") == {"verifier_key": first, "keys": [{"verifier_key": first, "endorsement": None}]}
    key.run("rotate")
    reported = key.json("show")
    assert reported["verifier_key"] == present_key(directory) != first
    assert [str(each) for each in trusted_keys(first, reported)] == [first, reported["verifier_key"]]
    assert key.run("show").splitlines() == [
        f"verifier key   {reported['verifier_key']}",
        f"key 1          {first}",
        f"key 2          {reported['verifier_key']}",
    ]


def test_rotate_prints_both_keys_and_the_next_step(directory: NotaryDirectory, key: Command) -> None:
    """`rotate` prints the old key, the new one, and the offset of its record."""
    first = present_key(directory)
    printed = key.run("rotate")
    second = present_key(directory)
    assert f"took effect    ordering record 2\nold key        {first}\nnew key        {second}\nnext " in printed
    third = key.json("rotate")
    assert (third["previous_verifier_key"], third["verifier_key"], third["resumed"]) == (second, present_key(directory), False)
    assert third["offset"] == 3
    assert third["keys"] == key.json("show")["keys"]
    assert [third["key_file"], third["key_history_file"]] == [str(directory.path / each) for each in ("notary-key.pem", "notary-keys.json")]


def test_prepare_says_what_to_copy(directory: NotaryDirectory, key: Command) -> None:
    """`prepare` names both files, changes no others, and makes no second key; `show` lists the prepared key, `rotate` uses it."""
    first = present_key(directory)
    printed = key.run("prepare")
    for file in ("notary-key.pem.next", "notary-keys.json.next"):
        assert str(directory.path / file) in printed
    assert "copy" in printed
    assert present_key(directory) == first
    again = key.json("prepare")
    assert (again["verifier_key"], again["found"]) == (first, True)
    shown = key.json("show")
    assert (shown["verifier_key"], shown["prepared"]) == (first, again["prepared"])
    assert len(shown["keys"]) == 1
    assert key.run("show").splitlines()[-1] == f"prepared       {again['prepared']}"
    rotated = key.json("rotate")
    assert (rotated["previous_verifier_key"], rotated["verifier_key"]) == (first, again["prepared"])
    assert "prepared" not in key.json("show")


@pytest.mark.parametrize("where", ["beside", "elsewhere"])
def test_the_owner_signs(directory: NotaryDirectory, tmp_path: Path, where: str, key: Command) -> None:
    """Without the owner's key, or with another key, nothing is rotated, and the error has both keys. `--owner-key` names any file."""
    first = present_key(directory)
    owner = (directory.path / "owner-key.pem").rename(tmp_path / "kept.pem")
    assert "--owner-key" in key.refuses("rotate")
    wrong = keys.create(directory.path / "owner-key.pem" if where == "beside" else tmp_path / "wrong.pem")
    flags = [] if where == "beside" else ["--owner-key", str(tmp_path / "wrong.pem")]
    complaint = key.refuses("rotate", *flags)
    assert wrong.public_key().public_bytes_raw().hex() in complaint
    assert keys.load(owner).public_key().public_bytes_raw().hex() in complaint
    assert present_key(directory) == first
    key.run("rotate", "--owner-key", str(owner))
    assert present_key(directory) != first


@pytest.mark.seconds
def test_a_lost_key_is_replaced_by_the_owner(directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch, key: Command) -> None:
    """`--lost` begins a new history with a new key, also after a kill behind its record, and only where the key is gone."""
    directory.register(bank)
    first = present_key(directory)
    assert "a key that is not lost is rotated without --lost" in key.refuses("rotate", "--lost")
    (directory.path / "notary-key.pem").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(keys, "end_anew", die)
        key.refuses("rotate", "--lost")
    key.run("rotate", "--lost")
    (shown,) = key.json("show")["keys"]
    assert shown == {"verifier_key": present_key(directory), "endorsement": None}
    assert present_key(directory) != first
    assert not list(directory.path.glob("*.next"))
    with serving(directory.config) as client:
        assert client.get("/v1/notary").json()["keys"] == [shown]


def test_a_machine_that_missed_a_rotation_does_not_rotate(directory: NotaryDirectory, tmp_path: Path, key: Command) -> None:
    """A key file without the key in force is rejected with both keys and the advice to copy; nothing is appended."""
    old = {file: file.read_bytes() for file in directory.path.glob("notary-key*")}
    first = present_key(directory)
    key.run("rotate")
    second = present_key(directory)
    put_back(old)
    complaint = key.refuses("rotate")
    assert first in complaint
    assert second in complaint
    assert "Copy key and key history" in complaint


def test_files_are_where_the_configuration_says(directory: NotaryDirectory, key: Command) -> None:
    """`key_file` and `key_history_file` name any path; the history's default is beside the configuration."""
    (directory.path / "elsewhere").mkdir()
    for name in ("notary-key.pem", "notary-keys.json"):
        (directory.path / name).rename(directory.path / "elsewhere" / name)
    text = directory.config.read_text()
    directory.config.write_text(text.replace('"notary-key', '"elsewhere/notary-key'))
    key.run("rotate")
    (directory.path / "elsewhere" / "notary-keys.json").rename(directory.path / "notary-keys.json")
    lines = [line for line in directory.config.read_text().splitlines() if not line.startswith("key_history_file")]
    directory.config.write_text("\n".join(lines))
    assert len(key.json("rotate")["keys"]) == 3
    assert sorted(os.listdir(directory.path / "elsewhere")) == ["notary-key.pem"]


def test_one_rotation_at_a_time(directory: NotaryDirectory, key: Command) -> None:
    """While one rotation runs, another exits with 2, and says to wait."""
    first = present_key(directory)
    holder = os.open(directory.path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    assert "another process" in key.refuses("rotate")
    assert present_key(directory) == first
    os.close(holder)
    key.run("rotate")


@pytest.mark.parametrize("missing", ["notary.toml", "notary-key.pem", "notary-keys.json"])
@pytest.mark.parametrize("action", ["show", "prepare", "rotate"])
def test_a_missing_file_is_a_clear_error(directory: NotaryDirectory, action: str, missing: str, key: Command) -> None:
    """A missing file gives exit 2 and a line with its name."""
    (directory.path / missing).unlink()
    reported = key.refuses(action)
    assert reported.startswith("notary key: ")
    assert str(directory.path / missing) in reported
    assert reported.count("\n") == 1


# ---- workers after a rotation ----


@pytest.mark.seconds
def test_receipts_outlive_a_rotation(directory: NotaryDirectory, bank: Bank, key: Command) -> None:
    """Receipts by the first key still verify; those by the second verify for a client that follows the worker's key history."""
    directory.register(bank)
    first = present_key(directory)
    with serving(directory.config) as client:
        before = _decide(client, bank)
    key.run("rotate")
    second = present_key(directory)
    with serving(directory.config) as client:
        after = _decide(client, bank)
        notary = client.get("/v1/notary").json()
        again = client.get(f"/v1/transactions/{before['transaction_id']}/receipt").text
    assert notary["verifier_key"] == second
    assert [each["verifier_key"] for each in notary["keys"]] == [first, second]
    known = trusted_keys(first, notary)
    for decision in (before, after):
        verify_receipt(decision["receipt"], decision, known)
    for decision, old in ((before, True), (after, False)):
        verify_receipt(decision["receipt"], decision, first if old else second)
        with pytest.raises(NotVerified, match="unknown-key"):
            verify_receipt(decision["receipt"], decision, second if old else first)
    # Nothing needs the old key: every earlier decision gets a receipt by the new key on request.
    verify_receipt(again, before, second)


def _decide(client: CheckedClient, bank: Bank) -> dict[str, Any]:
    """Returns a new decision with its receipt."""
    decision: dict[str, Any]
    [decision] = client.post(bank.body(spend())).json()["decisions"]
    assert decision["outcome"] == "committed"
    return decision


@pytest.mark.seconds
@pytest.mark.parametrize("killed_after", ["the record", "the key"])
def test_a_worker_starts_in_the_middle(
    directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch, key: Command, killed_after: str
) -> None:
    """After a rotation that stopped after its record, or between its two files, a worker serves with the new key, also with a new index."""
    directory.register(bank)
    with serving(directory.config) as client:
        _decide(client, bank)
    with monkeypatch.context() as patch:
        if killed_after == "the record":
            patch.setattr(keys, "put_in_place", die)
        else:
            patch.setattr(keys, "finish", lambda *_: False)
        key.run("rotate", code=2 if killed_after == "the record" else 0)
    assert (directory.path / "notary-keys.json.next").exists()
    assert (directory.path / "notary-key.pem.next").exists() == (killed_after == "the record")
    for name in ("worker-1", "worker-2"):
        with serving(directory.config, name) as client:
            decision, notary = _decide(client, bank), client.get("/v1/notary").json()
        assert len(notary["keys"]) == 2
        verify_receipt(decision["receipt"], decision, notary["verifier_key"])
    assert key.json("rotate")["resumed"]
    assert present_key(directory) == notary["verifier_key"]
    assert not list(directory.path.glob("*.next"))


# ---- a lost key ----


@pytest.mark.parametrize("is_over", [False, True])
def test_lost_keeps_the_endorsement_of_a_prepared_key(is_over: bool, directory: NotaryDirectory, key: Command) -> None:
    """It was endorsed before the present key was lost, so clients go on to trust the notary. Its record may be in the log."""
    first = present_key(directory)
    key.run("prepare")
    key_file, *_ = files = [directory.path / name for name in ("notary-key.pem", "notary-key.pem.next", "notary-keys.json.next")]
    prepared = {file: file.read_bytes() for file in files}
    if is_over:
        key.run("rotate")
        put_back(prepared)  # a second machine, as `prepare` left it
    key_file.unlink()
    steps = iter((move_into_place, die))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "move_into_place", lambda *files: next(steps)(*files))  # killed before the second one
        key.refuses("rotate", "--lost")
    assert "which the lost key has endorsed" in key.run("rotate", "--lost")
    assert present_key(directory) in map(str, trusted_keys(first, key.json("show")))


def test_lost_replaces_a_former_prepared_key(directory: NotaryDirectory, key: Command) -> None:
    """This machine still has the files of a rotation that other machines have completed and followed by another one."""
    key.run("prepare")
    stale = {file: file.read_bytes() for file in directory.path.glob("*.next")}
    assert len(stale) == 2
    former = keys.load(directory.path / "notary-key.pem.next").public_key()
    key.run("rotate")
    key.run("rotate")
    (directory.path / "notary-key.pem").unlink()
    put_back(stale)
    key.run("rotate", "--lost")
    (shown,) = key.json("show")["keys"]
    assert shown["verifier_key"] == present_key(directory) != keys.verifier_key(ORIGIN, former)
    assert not list(directory.path.glob("*.next"))


def test_lost_claims_no_endorsement_by_another_key(directory: NotaryDirectory, key: Command) -> None:
    """This machine prepared a rotation from the first key. Another machine then rotated to a second one, which is lost."""
    present = [directory.path / name for name in ("notary-key.pem", "notary-keys.json")]
    following = [file.with_name(f"{file.name}.next") for file in present]
    key.run("prepare")
    before = {file: file.read_bytes() for file in (*present, *following)}
    for file in following:
        file.unlink()
    key.run("rotate")
    second = present_key(directory)
    put_back(before)
    present[0].unlink()
    done = key.json("rotate", "--lost")
    assert (done["previous_verifier_key"], done["endorsed"]) == (second, False)
    assert len(key.json("show")["keys"]) == 1
