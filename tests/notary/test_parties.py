"""The parties: loaded, checked, and loaded again when the file changes."""

import asyncio
import base64
import json
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from notary import parties
from notary.parties import Parties
from ordering.durable import locked_directory
from ordering.errors import ConfigurationError
from tests.notary.party import Bank


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with one party, O=A."""
    parties.write(tmp_path / "parties.json", {"O=A": Bank("O=A").public_pem.decode()})
    return tmp_path / "parties.json"


def test_a_change_is_seen(file: Path) -> None:
    """After the next look an added party is known, and a removed one is not."""
    known = Parties(file)
    assert (known.get("O=A") is not None, known.get("O=B"), len(known)) == (True, None, 1)
    parties.add(file, "O=B", Bank("O=B").public_pem, "x")
    known.reload()
    assert known.get("O=B") is not None
    parties.write(file, {})
    known.reload()
    assert len(known) == 0


def test_an_unchanged_file_is_not_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at an unchanged file costs one stat."""
    known = Parties(file)
    monkeypatch.setattr(parties, "_entries", lambda file: pytest.fail("read again"))
    known.reload()


BROKEN = ["", "garbage", "[]", '{"O=A": 1}', '{"O=A": "no key"}', "\ud800", "{" * 1000, '{"a":' * 50_000, '{"O=A": ' + '{"a":' * 50_000]


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_file_changes_nothing(file: Path, content: str) -> None:
    """While the file is malformed the parties stay unchanged; a corrected file is loaded again."""
    known = Parties(file)
    complete = file.read_text()
    file.write_bytes(content.encode(errors="surrogatepass"))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"parties\.json"):
            known.reload()
        assert known.get("O=A") is not None
    file.unlink()
    with pytest.raises(ConfigurationError, match=r"parties\.json"):
        known.reload()
    file.write_text(complete.replace("O=A", "O=B"))
    known.reload()
    assert (known.get("O=A"), known.get("O=B") is not None) == (None, True)


def test_the_file_is_replaced_atomically(file: Path) -> None:
    """A reader with the old file open reads it to its end, and no temporary files stay."""
    with file.open() as old:
        parties.add(file, "O=B", Bank().public_pem, "x")
        assert set(json.load(old)) == {"O=A"}
    assert [each.name for each in file.parent.iterdir()] == ["parties.json"]


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """The error for a folder that cannot be written names the file."""
    with pytest.raises(ConfigurationError, match=r"no/parties\.json"):
        parties.write(tmp_path / "no" / "parties.json", {})
    with pytest.raises(ConfigurationError, match=r"no/parties\.json"):
        parties.add(tmp_path / "no" / "parties.json", "O=A", Bank().public_pem, "x")


def test_the_keys_are_those_of_the_parties(file: Path) -> None:
    """The keys are DER, and those of the file as it is now: a removed party has none."""
    known, bank = Parties(file), Bank("O=B", p256=True)
    key = bank.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert not known.has_key(key)
    parties.write(file, {"O=B": bank.certificate_pem().decode()})
    known.reload()
    assert known.has_key(key)
    parties.write(file, {})
    known.reload()
    assert not known.has_key(key)


async def test_many_parties_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGHUP has them read at once. Other tasks have their turns of the event loop meanwhile; the parties change all together."""
    monkeypatch.setattr(parties, "CHECK_S", 3600)
    monkeypatch.setattr(parties, "LOADED_AT_ONCE", 2)
    file, bank = tmp_path / "parties.json", Bank()
    parties.write(file, {})
    known = Parties(file)
    parties.write(file, {f"O={at}": bank.public_pem.decode() for at in range(20)})
    following = asyncio.create_task(known.follow())
    known.check_now()
    turns = 0
    while not known:
        await asyncio.sleep(0)
        turns += 1
    following.cancel()
    assert turns > 10
    assert len(known) == 20


@pytest.mark.parametrize("content", ["garbage", '{"a":' * 50_000], ids=["garbage", "nested too deep"])
async def test_an_error_is_logged_again_when_somebody_asks(
    file: Path, content: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each look at a broken file finds the same error, which is logged once, and once more after SIGHUP."""
    monkeypatch.setattr(parties, "CHECK_S", 0.001)
    known = Parties(file)
    file.write_text(content)
    following = asyncio.create_task(known.follow())

    async def logged() -> int:
        await asyncio.sleep(0.2)
        return len(caplog.records)

    assert await logged() == 1
    known.check_now()
    assert await logged() == 2
    following.cancel()
    assert known.get("O=A") is not None


def test_an_entry_may_have_a_weight_and_a_quota(file: Path) -> None:
    """The short and the long form stand beside each other; a change is seen like any other."""
    pem = Bank("O=A").public_pem.decode()
    known = Parties(file)
    assert (known.weight_of("O=A"), known.requests_per_s_of("O=A")) == (1, None)
    long = {"public_key": pem, "weight": 2, "requests_per_s": 0}
    file.write_text(json.dumps({"O=A": long, "O=B": pem, "O=C": {"public_key": pem}}))
    known.reload()
    found = [(known.weight_of(name), known.requests_per_s_of(name)) for name in ("O=A", "O=B", "O=C", "O=D")]
    assert found == [(2, 0), *[(1, None)] * 3]
    parties.write(file, parties.read(file))
    assert json.loads(file.read_text()) == {"O=A": long, "O=B": pem, "O=C": pem}


WRONG = {
    "weight-0": ({"weight": 0}, "`weight` is 0; it is to be an integer from 1 to 100"),
    "weight-101": ({"weight": 101}, "`weight` is 101"),
    "weight-true": ({"weight": True}, "`weight` is True"),
    "weight-half": ({"weight": 1.5}, r"`weight` is 1\.5"),
    "quota": ({"requests_per_s": -1}, "`requests_per_s` is -1; it is to be an integer from 0 to 1000000"),
    "quota-null": ({"requests_per_s": None}, "`requests_per_s` is None"),
    "unknown": ({"wieght": 2}, "there is no member 'wieght'"),
    "bad-key": ({"public_key": "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"}, "is no PEM public key"),
    "no-key": ({"public_key": None}, "`public_key` is None"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_entry_is_named(file: Path, wrong: tuple[dict[str, object], str]) -> None:
    """File, party, member, value, and what is allowed; the parties stay as they were."""
    known = Parties(file)
    members, why = wrong
    file.write_text(json.dumps({"O=A": {"public_key": Bank().public_pem.decode(), **members}, "O=B": Bank().public_pem.decode()}))
    with pytest.raises(ConfigurationError, match=rf"parties\.json, party 'O=A':? {why}"):
        known.reload()
    assert (len(known), known.get("O=B")) == (1, None)


def of_no_version(bank: Bank) -> str:
    """Returns the party's certificate with a version that X.509 does not have."""
    lines = bank.certificate_pem().decode().splitlines()
    encoded = base64.b64decode("".join(lines[1:-1])).replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x03", 1)
    return f"{lines[0]}\n{base64.encodebytes(encoded).decode()}{lines[-1]}\n"


async def test_a_certificate_of_no_version_leaves_the_present_parties(
    file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library raises an error of its own for it. Nor does a bug in the reading of one file end it."""
    with pytest.raises(ConfigurationError, match="is not a valid X509 version"):
        parties.add(file, "O=B", of_no_version(Bank("O=B")).encode(), "b.pem")
    known = Parties(file)
    file.write_text(json.dumps({"O=B": of_no_version(Bank("O=B"))}))
    await checked(known)
    assert "is rejected, the present parties stay in use" in caplog.text
    monkeypatch.setattr(parties, "load_public_key", lambda pem, source: 1 / 0)
    await checked(known)
    assert "cannot be read, the present parties stay in use" in caplog.text
    assert known.get("O=A") is not None


async def checked(known: Parties) -> None:
    """Have the file read once by `follow`, which must go on."""
    following = asyncio.create_task(known.follow())
    known.check_now()
    await asyncio.sleep(0.1)
    assert not following.done()
    following.cancel()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_the_mode_of_the_file_stays(mode: int, file: Path) -> None:
    """The parties' names may be confidential."""
    file.chmod(mode)
    parties.add(file, "O=B", Bank("O=B").public_pem, "b.pem")
    assert file.stat().st_mode & 0o777 == mode


def test_a_party_is_added_behind_a_link(file: Path, tmp_path: Path) -> None:
    """Several workers may share the file that the link leads to."""
    link = tmp_path / "link.json"
    link.symlink_to(file)
    assert parties.add(link, "O=B", Bank("O=B").public_pem, "b.pem") == "added"
    assert list(parties.read(file)) == ["O=A", "O=B"]
    assert link.is_symlink()


@pytest.mark.parametrize("form", ["no line end", "crlf", "certificate"])
def test_the_same_key_in_another_text_is_the_same_key(form: str, file: Path) -> None:
    """The file may be written by hand. Its text stays."""
    bank = Bank("O=B")
    pem = bank.public_pem.decode()
    text = {"no line end": pem.strip(), "crlf": pem.replace("\n", "\r\n"), "certificate": bank.certificate_pem().decode()}[form]
    file.write_text(json.dumps({bank.name: text}))
    assert parties.add(file, bank.name, bank.public_pem, "b.pem", weight=2) == "changed"
    assert parties.read(file)[bank.name] == parties.RegisteredParty(text, 2)


def test_a_replaced_file_of_the_same_size_and_time_is_read(file: Path) -> None:
    """All Ed25519 keys have one length, and a copy may keep the time of its original."""
    old, new = Bank("O=A"), Bank("O=A")
    for bank in (old, new):
        file.write_text(json.dumps({bank.name: bank.public_pem.decode()}))
        os.utime(file, (1, 1))
        if bank is old:
            known = Parties(file)
    known.reload()
    party = known.get("O=A")
    assert party is not None
    assert not party.verify(old.sign(b"x"), b"x")


@pytest.mark.parametrize("text", ['{"O=A": "x", "O=A": "y"}', '{"O=A": {"public_key": "x", "public_key": "y"}}'])
def test_a_member_that_is_there_twice_is_an_error(text: str, file: Path) -> None:
    """One of the keys is out of date, and parsers differ on which one counts."""
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="is there twice: remove one"):
        Parties(file)


def test_a_folder_that_is_locked_for_long_is_reported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`notary key rotate` holds the lock while it waits for the brokers."""
    monkeypatch.setattr(parties, "LOCK_S", 0.05)
    with locked_directory(file.parent), pytest.raises(ConfigurationError, match="another process, such as `notary key rotate`"):
        parties.add(file, "O=B", Bank("O=B").public_pem, "b.pem")
