"""`notary log show`: the records of a log, who signed them, which took effect, and why the rest did not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from notary import cli
from ordering.records import Genesis, Partitions, Retire, batch_key
from ordering.signatures import NO_LOG_ID, SigningKey, sign_record
from tests.notary.cli.written import checkpoint, entry, fill, register, signing_key, write
from tests.notary.http.asking import Asking
from tests.notary.party import Bank, spend, transaction_id
from tests.notary.process import NotaryDirectory, NotaryProcess

STRANGER = SigningKey(bytes(32))


@pytest.fixture
def directory(tmp_path: Path) -> NotaryDirectory:
    """A notary whose log has a genesis record alone."""
    return NotaryDirectory.create(tmp_path / "notary")


def show(directory: NotaryDirectory, *flags: object) -> int:
    return cli.main(["log", "show", "--config", str(directory.config), *map(str, flags)])


def shown(capsys: pytest.CaptureFixture[str], directory: NotaryDirectory, *flags: object) -> list[dict[str, Any]]:
    """The records as `--json` has them."""
    capsys.readouterr()
    assert show(directory, "--json", *flags) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_log_is_shown(
    own_directory: NotaryDirectory, bank: Bank, notary_process: Callable[..., NotaryProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each record has kind, fields, signer and effect; an entry has its content; `seen` counts the records that took effect."""
    process = notary_process(own_directory.config)
    requests = [spend(), spend()]
    with Asking(process.url) as asking:
        asking.decide(bank, *requests)
    assert process.stop() == 0
    records = shown(capsys, own_directory, "--payload")
    ordering = [record for record in records if record["topic"] == "ordering" and record["kind"] != "checkpoint"]
    assert [(each["offset"], each["kind"], each["signed_by"], each["seen"]) for each in ordering] == [
        (0, "genesis", "owner", 1),
        (1, "register", "key 1", 2),
        (2, "entry", "key 1", 3),
    ]
    genesis, registered, decided = ordering
    assert genesis["fields"]["notary_name"] == "O=Notary Service,L=London,C=GB"
    assert registered["fields"]["name"] == "worker-1"
    assert registered["fields"]["view"] == {"seen": 1, "history": genesis["history"]}
    ids = [transaction_id(request) for request in requests]
    assert decided["fields"]["transaction_ids"] == decided["content"]["transaction_ids"] == ids
    assert not decided["content"]["filled"]
    [payload] = [record for record in records if record["topic"] == "payload"]
    assert (payload["content_of"], payload["kind"], payload["became"]) == (2, "payload", "content of ordering record 2")
    assert (payload["partition"], payload["offset"]) == (decided["content"]["partition"], decided["content"]["offset"])
    assert show(own_directory, "--payload") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "  entry " in line or "  genesis " in line or "  register " in line] == ["0", "1", "2"]
    assert any("effect 3" in line and "requests=2" in line for line in lines)
    assert any("content     payload partition" in line and "2 requests" in line for line in lines)


def test_what_took_no_effect_says_why(directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """Garbage, forged records, copies, records by a former key, and those that come too late: each has its reason and its signer."""
    former = directory.path / "former.pem"
    shutil.copy(directory.path / "notary-key.pem", former)
    stolen = sign_record(Retire(1), bytes(32), signing_key(directory.path / "owner-key.pem"))
    write(directory.path, [register("w1", 1), register("w1", 1), b"garbage", checkpoint(1), checkpoint(7), entry(7, 1, b"x"), stolen])
    write(directory.path, [Retire(1)])  # signed by the notary's key, not the owner's
    foreign = Genesis(bytes(16), 4, STRANGER.public_key, STRANGER.public_key, "O=Thief", "thief.example/x")
    write(directory.path, [sign_record(foreign, NO_LOG_ID, STRANGER)])
    write(directory.path, [Partitions(2)], "owner-key.pem")
    assert cli.main(["key", "rotate", "--config", str(directory.config)]) == 0
    write(directory.path, [register("w2", 2)], "former.pem")
    found = [(each["kind"], each["signed_by"], each["seen"], each["became"]) for each in shown(capsys, directory)]
    view = "worker 'w1' had another history after 1 records than this worker"
    assert [each[:3] for each in found] == [
        ("genesis", "owner", 1),
        ("register", "key 1", 2),
        ("register", "key 1", None),
        (None, "nobody", None),
        ("checkpoint", "key 1", None),
        ("checkpoint", "key 1", None),
        ("entry", "key 1", None),
        ("retire", "nobody", None),
        ("retire", "key 1", None),
        ("genesis", "nobody", None),
        ("partitions", "owner", None),
        ("key", "owner", 3),
        ("register", "key 1 (former)", None),
    ]
    whys = [each[3] for each in found]
    assert whys[0] == "effect 1"
    assert whys[1].startswith("effect 2, ")
    assert view in whys[1]
    assert "came twice" in whys[2]
    assert "at least" in whys[3]
    assert "is not compared" in whys[4]
    assert "that is over" in whys[5]
    assert "does not count" in whys[6]
    assert "no signature of the key in force" in whys[7]
    assert "no signature of the key in force" in whys[8]
    assert "no signature" in whys[9]
    assert whys[10] == "skipped: a partitions record does not count"
    assert whys[11] == "effect 3"
    assert "no signature of the key in force" in whys[12]


def test_payload_records_that_are_no_content_say_why(directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """A fill that came first is the content; what came behind it, a forged fill, a stray record and a bad key are not."""
    payload = b"[]"
    sent = entry(1, 1, payload)
    forged = (0, batch_key(1, 1), bytes(96))
    records = [forged, fill(directory.path, sent), (0, batch_key(1, 1), payload), (0, batch_key(9, 9), b"stray"), (0, b"bad", b"x")]
    write(directory.path, [register("w1", 1), sent, *records])
    found = shown(capsys, directory, "--payload")
    decided = next(each for each in found if each["kind"] == "entry")
    assert decided["content"] == {"partition": 0, "offset": 1, "filled": True, "transaction_ids": []}
    payloads = [(each["kind"], each["signed_by"], each["content_of"], each["became"]) for each in found if each["topic"] == "payload"]
    assert payloads == [
        ("fill", "nobody", None, "skipped: another record is the content of its batch"),
        ("fill", "key 1", 2, "content of ordering record 2"),
        ("payload", None, None, "skipped: another record is the content of its batch"),
        ("payload", None, None, "not asked for: no entry of that batch took effect in this partition"),
        ("payload", None, None, "skipped: a payload key has 16 bytes, this one has 3"),
    ]
    assert show(directory, "--payload") == 0
    assert "payload partition 0 offset 1: a fill: nothing" in capsys.readouterr().out


def test_content_that_is_missing_is_named(directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """Behind an entry whose content is not there nothing can be judged, and the entry says what it waits for."""
    write(directory.path, [register("w1", 1), entry(1, 1, b"lost", partition=3), register("w2", 2)])
    became = [each["became"] for each in shown(capsys, directory)]
    assert became[2:] == ["not judged: the content of batch (1, 1) is not in payload partition 3"] * 2


def test_a_part_is_shown(directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """`--from` and `--count` name ordering records; what they are made of is the same as in the whole."""
    write(directory.path, [register(f"w{number}", number) for number in range(1, 9)])
    whole = shown(capsys, directory)
    assert len(whole) == 9
    assert shown(capsys, directory, "--from", 3, "--count", 2) == whole[3:5]
    assert shown(capsys, directory, "--from", 7) == whole[7:]
    assert shown(capsys, directory, "--count", 0) == shown(capsys, directory, "--from", 99) == []


def test_a_part_has_the_payloads_of_its_entries(directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """With a range, only payload records of the entries in it are shown."""
    payloads = [(number % 4, batch_key(1, number), b"%d" % number) for number in range(1, 5)]
    entries = [entry(1, number, b"%d" % number, number % 4) for number in range(1, 5)]
    write(directory.path, [register("w1", 1), *payloads, *entries])
    found = shown(capsys, directory, "--payload", "--from", 3, "--count", 2)
    assert [each["content_of"] for each in found if each["topic"] == "payload"] == [3, 4]


def test_another_notarys_log_is_refused(
    directory: NotaryDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misnamed configuration: exit 2, with both names."""
    monkeypatch.setenv("NOTARY_NAME", "O=Other")
    assert show(directory) == 2
    complaint = capsys.readouterr().err
    assert "'O=Other'" in complaint
    assert "'O=Notary Service,L=London,C=GB'" in complaint


@pytest.mark.parametrize("arguments", [["log"], ["log", "show"], ["log", "show", "--config", "x", "--from", "a"]])
def test_usage_errors_exit_2(arguments: list[str]) -> None:
    """An action and a configuration must be named."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
