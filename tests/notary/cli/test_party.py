"""`notary party add`: registration of keys and certificates."""

import json
import subprocess
import sys
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from notary import cli
from notary.parties import Parties
from tests.notary.party import Bank
from tests.notary.process import ROOT, NotaryDirectory


def add(directory: NotaryDirectory, name: str, pem: bytes, *flags: str) -> int:
    """Run `notary party add` with a key in a file."""
    file = directory.path / "key-to-add.pem"
    file.write_bytes(pem)
    return cli.main(["party", "add", name, "--public-key", str(file), "--config", str(directory.config), *flags])


def registered(directory: NotaryDirectory) -> dict[str, str]:
    """Returns the content of the parties file."""
    parties: dict[str, str] = json.loads((directory.path / "parties.json").read_text())
    return parties


@pytest.mark.parametrize("p256", [False, True], ids=["ed25519", "p256"])
@pytest.mark.parametrize("certificate", [False, True], ids=["key", "certificate"])
def test_a_key_or_certificate_is_registered(directory: NotaryDirectory, p256: bool, certificate: bool) -> None:
    """A key of either kind, bare or in a certificate, is stored as a bare key, and verifies its owner's signatures."""
    bank = Bank("O=Bänk", p256=p256)
    assert add(directory, bank.name, bank.certificate_pem() if certificate else bank.public_pem) == 0
    assert registered(directory) == {bank.name: bank.public_pem.decode()}
    party = Parties(directory.path / "parties.json").get(bank.name)
    assert party is not None
    assert party.verify(bank.sign(b"x"), b"x")


def test_the_same_again_is_done_already(directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """Registering the same key twice is no error, and the output says so."""
    bank = Bank()
    assert add(directory, bank.name, bank.public_pem, "--json") == 0
    assert add(directory, bank.name, bank.certificate_pem(), "--json") == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert printed == [{"party": bank.name, "added": added, "changed": False} for added in (True, False)]


def test_a_missing_file_is_not_made_anew(directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """If the parties file is missing, the other parties would be gone: the error says where to get it."""
    (directory.path / "parties.json").unlink()
    assert add(directory, "O=Bank", Bank().public_pem) == 2
    assert "copy it from a backup, or from another machine of this notary" in capsys.readouterr().err


def test_the_output_names_the_file_and_the_delay(directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """A worker looks at the file now and then, so a submission right after the command may be rejected: the output says both."""
    bank = Bank()
    assert add(directory, bank.name, bank.public_pem) == 0
    known = f"workers that use the file {directory.path / 'parties.json'} read it within 2 s"
    assert capsys.readouterr().out.splitlines()[-1] == f"registered {bank.name}; {known}"


def test_weight_and_quota_are_written_and_changed(directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """They stand beside the key; given again they change, left out they stay; what cannot be is rejected and changes nothing."""
    bank = Bank()
    assert add(directory, bank.name, bank.public_pem, "--weight", "2", "--json") == 0
    assert add(directory, bank.name, bank.public_pem, "--quota", "500", "--json") == 0
    assert add(directory, bank.name, bank.public_pem, "--json") == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [(each["added"], each["changed"]) for each in printed] == [(True, False), (False, True), (False, False)]
    expected: dict[str, Any] = {bank.name: {"public_key": bank.public_pem.decode(), "weight": 2, "requests_per_s": 500}}
    assert registered(directory) == expected
    for wrong in (("--weight", "0"), ("--weight", "101"), ("--quota", "-1")):
        assert add(directory, bank.name, bank.public_pem, *wrong) == 2
        assert wrong[1] in capsys.readouterr().err
    assert registered(directory) == expected


def test_another_key_for_a_known_name_is_rejected(directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """Another key for a registered name is rejected, so a name cannot be taken over."""
    bank = Bank()
    add(directory, bank.name, bank.public_pem)
    assert add(directory, bank.name, Bank().public_pem) == 2
    assert "another key" in capsys.readouterr().err
    assert registered(directory) == {bank.name: bank.public_pem.decode()}


def _pem(key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed448.Ed448PublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


BAD_KEYS: dict[str, bytes] = {
    "empty": b"",
    "garbage": b"garbage",
    "not-text": b"\xff\x00",
    "cut": Bank().public_pem[:60],
    "bad-certificate": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    "private-key": Bank().key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    "rsa": _pem(rsa.generate_private_key(65537, 1024).public_key()),  # noqa: S505 - rejected for its type
    "p384": _pem(ec.generate_private_key(ec.SECP384R1()).public_key()),
    "secp256k1": _pem(ec.generate_private_key(ec.SECP256K1()).public_key()),
    "ed448": _pem(ed448.Ed448PrivateKey.generate().public_key()),
}


@pytest.mark.parametrize("pem", BAD_KEYS.values(), ids=BAD_KEYS)
def test_a_key_of_another_kind_is_rejected(directory: NotaryDirectory, pem: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """Anything but an Ed25519 or P-256 public key is rejected, with the file's name."""
    assert add(directory, "O=A", pem) == 2
    assert "key-to-add.pem" in capsys.readouterr().err
    assert registered(directory) == {}


@pytest.mark.parametrize("name", ["", "é" * 128, "\udcff"], ids=["empty", "too-long", "not-utf-8"])
def test_a_name_that_is_none_is_rejected(directory: NotaryDirectory, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A name has 1 to 255 bytes of UTF-8, as in a submission. The message names the rule that is broken."""
    assert add(directory, name, Bank().public_pem) == 2
    assert ("is UTF-8, and '\\udcff' is not" if name == "\udcff" else "has 1 to 255 bytes") in capsys.readouterr().err
    assert registered(directory) == {}


def test_missing_files_are_named(directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing key, configuration or parties file gives exit 2 and its name."""
    config = str(directory.config)
    assert cli.main(["party", "add", "O=A", "--public-key", "no-key.pem", "--config", config]) == 2
    assert "no-key.pem" in capsys.readouterr().err
    assert cli.main(["party", "add", "O=A", "--public-key", config, "--config", "no-config.toml"]) == 2
    assert "no-config.toml" in capsys.readouterr().err
    (directory.path / "parties.json").unlink()
    assert add(directory, "O=A", Bank().public_pem) == 2
    assert "parties.json" in capsys.readouterr().err


@pytest.mark.seconds
def test_parties_added_at_once_are_all_there(directory: NotaryDirectory) -> None:
    """Processes that register at the same time do not undo each other's changes."""
    (directory.path / "k.pem").write_bytes(Bank().public_pem)
    code = (
        "import sys; from pathlib import Path; from notary import parties\n"
        "for i in range(20): parties.add(Path(sys.argv[1]), f'O={sys.argv[2]}-{i}', Path(sys.argv[3]).read_bytes(), 'k')"
    )
    files = str(directory.path / "parties.json"), str(directory.path / "k.pem")
    adding = [
        subprocess.Popen([sys.executable, "-c", code, files[0], str(number), files[1]], env={"PYTHONPATH": str(ROOT)})
        for number in range(3)
    ]
    assert [process.wait(60) for process in adding] == [0, 0, 0]
    assert len(registered(directory)) == 60
