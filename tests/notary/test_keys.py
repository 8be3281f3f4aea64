"""The notary's own key: created once, readable by its owner only, published as a verifier key; and replaced, with a history."""

import base64
import errno
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from joiner import Ready
from joiner.control import LogState
from notary import keys
from notary.keyring import Keyring, ReceiptKey
from notary.verify import trusted_keys
from ordering.errors import ConfigurationError
from tests.notary.disk import Disk, Killed

ROOT = Path(__file__).parents[2]
ORIGIN = "notary.example/x"


def test_a_key_comes_back_from_its_file(tmp_path: Path) -> None:
    """The loaded key equals the created one, and only the owner may read the file."""
    key = keys.create(tmp_path / "k.pem")
    assert keys.load(tmp_path / "k.pem").private_bytes_raw() == key.private_bytes_raw()
    assert (tmp_path / "k.pem").stat().st_mode & 0o777 == 0o600


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    """An existing file of that name stays, even an empty one or a dangling link."""
    (tmp_path / "k.pem").write_text("")
    (tmp_path / "link.pem").symlink_to(tmp_path / "nowhere")
    for name in ("k.pem", "link.pem"):
        with pytest.raises(ConfigurationError, match="never overwritten"):
            keys.create(tmp_path / name)
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The error names the file."""
    with pytest.raises(ConfigurationError, match=r"no/k\.pem"):
        keys.create(tmp_path / "no" / "k.pem")


def test_a_key_in_a_closed_folder_may_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the key is lost is not known then. The error names the remedy."""
    assert keys.is_missing(tmp_path / "k.pem")

    def closed(path: Path) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", closed)
        with pytest.raises(ConfigurationError, match=r"k\.pem is there cannot be seen: Permission denied.*Give it execute permission"):
            keys.is_missing(tmp_path / "k.pem")
    keys.create(tmp_path / "k.pem")
    assert not keys.is_missing(tmp_path / "k.pem")


PKCS8 = (Encoding.PEM, PrivateFormat.PKCS8)
NOT_KEYS: dict[str, bytes] = {
    "empty": b"",
    "garbage": b"\xff\x00garbage",
    "encrypted": Ed25519PrivateKey.generate().private_bytes(*PKCS8, BestAvailableEncryption(b"x")),
    "p256": ec.generate_private_key(ec.SECP256R1()).private_bytes(*PKCS8, NoEncryption()),
    "cut": Ed25519PrivateKey.generate().private_bytes(*PKCS8, NoEncryption())[:50],
}


@pytest.mark.parametrize("pem", NOT_KEYS.values(), ids=NOT_KEYS)
def test_what_is_no_ed25519_key_is_refused(tmp_path: Path, pem: bytes) -> None:
    """Any other content raises an error that names the file, and never shows its content."""
    (tmp_path / "k.pem").write_bytes(pem)
    (tmp_path / "k.pem").chmod(0o600)
    with pytest.raises(ConfigurationError, match=r"k\.pem") as wrong:
        keys.load(tmp_path / "k.pem")
    assert "BEGIN" not in str(wrong.value)


def test_a_missing_key_says_how_to_make_one(tmp_path: Path) -> None:
    """The error names the file, and `notary init`."""
    with pytest.raises(ConfigurationError, match=r"k\.pem.*notary init"):
        keys.load(tmp_path / "k.pem")


def test_a_key_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key file of another user is rejected with that user's id, unless the owner is root, who can read everything."""
    keys.create(tmp_path / "k.pem")
    if os.getuid() == 0:
        os.chown(tmp_path / "k.pem", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigurationError, match=r"k\.pem belongs to user \d+.*chown"):
        keys.load(tmp_path / "k.pem")


# ---- the history ----


class Files:
    """The two key files of a notary, in one folder or in two."""

    def __init__(self, folder: Path, history_folder: str = "") -> None:
        self.key = folder / "k.pem"
        self.history = folder / history_folder / "keys.json"
        self.both = keys.KeyAndHistory(self.key, self.history, ORIGIN)

    @classmethod
    def create(cls, folder: Path, history_folder: str = "", rotations: int = 0) -> Self:
        """Make the files as `notary init` does, and rotate them that many times."""
        (folder / history_folder).mkdir(parents=True, exist_ok=True)
        files = cls(folder, history_folder)
        keys.create_history(files.history, ORIGIN, keys.create(files.key).public_key())
        for _ in range(rotations):
            files.rotate()
        return files

    def rotate(self) -> keys.PreparedKey:
        """Run both halves of a rotation."""
        prepared = self.prepare()
        self.put_in_place()
        return prepared

    def prepare(self) -> keys.PreparedKey:
        """Run the first half of a rotation."""
        return keys.prepare(self.both)

    def put_in_place(self) -> None:
        """Run the second half of a rotation."""
        keys.put_in_place(self.both)

    def prepared(self) -> keys.PreparedKey | None:
        """The rotation that the first half left."""
        return keys.prepared(self.both)

    def load(self) -> list[str]:
        """The verified keys of the history, as a worker loads them when it starts."""
        return [each.verifier_key for each in keys.load_history(self.history, ORIGIN, keys.load(self.key).public_key())]

    def present(self) -> list[str]:
        """The keys up to the one in the key file, as a worker that starts now finds them."""
        return [each.verifier_key for each in keys.present_history(self.both)]

    def edit(self, change: Callable[[list[dict[str, Any]]], object]) -> None:
        """Change the history's file."""
        found = json.loads(self.history.read_bytes())
        change(found)
        self.history.write_text(json.dumps(found))


def test_the_history_leads_from_the_first_key_to_the_present_one(tmp_path: Path) -> None:
    """A client that trusts any of the keys can follow to the last one, but not back to an older one."""
    files = Files.create(tmp_path, rotations=3)
    known = files.load()
    assert len(set(known)) == 4
    assert known[-1] == keys.verifier_key(ORIGIN, keys.load(files.key).public_key())
    for number, key in enumerate(known):
        assert [str(each) for each in trusted_keys(key, files.history.read_bytes())] == known[number:]
    assert files.history.stat().st_mode & 0o444 == 0o444 & ~_umask()


def test_an_endorsement_is_the_documented_bytes(tmp_path: Path) -> None:
    """An endorsement has the documented bytes: four lines, a blank one, and the old key's Ed25519 signature over the four lines."""
    files = Files.create(tmp_path, rotations=1)
    [first, second] = json.loads(files.history.read_bytes())
    assert first == {"verifier_key": first["verifier_key"], "endorsement": None}
    _check_endorsement(first["verifier_key"], second)


def test_the_example_of_the_documentation_can_be_followed() -> None:
    """The key history of formats.md is sound, and its second key is endorsed as that page says."""
    section = (ROOT / "docs/formats.md").read_text().split("\n## Key history\n")[1].split("\n## ")[0]
    [first, second] = json.loads(section.split("```json\n")[1].split("```")[0])
    assert [str(key) for key in trusted_keys(first["verifier_key"], [first, second])] == [first["verifier_key"], second["verifier_key"]]
    _check_endorsement(first["verifier_key"], second)
    for each, seed in ((first, b"first"), (second, b"second")):
        public = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(seed).digest()).public_key()
        assert each["verifier_key"] == keys.verifier_key("notary.example/london", public)


def _check_endorsement(previous: str, following: dict[str, str]) -> None:
    """Verify an endorsement without any code of ours."""
    name, key_id, encoded = previous.split("+", 2)
    text, line = following["endorsement"].split("\n\n")
    assert text == f"notary/key/v1\n{name}\n{previous}\n{following['verifier_key']}"
    head, signed = line.rsplit(" ", 1)
    assert (head, signed[-1]) == (f"— {name}", "\n")
    signature = base64.b64decode(signed)
    assert signature[:4].hex() == key_id
    Ed25519PublicKey.from_public_bytes(base64.b64decode(encoded)[1:]).verify(signature[4:], f"{text}\n".encode())


def test_what_a_worker_answers_serves_as_a_history(tmp_path: Path) -> None:
    """A lost history can be restored from `GET /v1/notary` of any running worker, and rotated again."""
    files = Files.create(tmp_path, rotations=1)
    before = files.load()
    files.history.write_text(json.dumps({"name": "O=N", "keys": json.loads(files.history.read_bytes())}))
    assert files.load() == before
    files.rotate()
    assert files.load()[:2] == before
    assert len(json.loads(files.history.read_bytes())) == 3


def test_a_missing_history_says_what_it_should_be(tmp_path: Path) -> None:
    """A notary from before key histories gets its history from the line in the error message."""
    files = Files.create(tmp_path)
    before = files.load()
    files.history.unlink()
    for ask in (files.load, files.prepare):
        with pytest.raises(ConfigurationError, match=r"there is no key history .*keys\.json.*line: \[") as missing:
            ask()
    files.history.write_text(str(missing.value).split("line: ")[1])
    assert files.load() == before


WRONG: dict[str, tuple[Callable[[list[dict[str, Any]]], object], str]] = {
    "empty": (lambda history: history.clear(), "1 to 10000 keys"),
    "no-endorsement": (lambda history: history[1].update(endorsement=None), "without an endorsement"),
    "another-endorsement": (lambda history: history[1].update(endorsement=history[2]["endorsement"]), "bad-endorsement"),
    "first-one-bad": (lambda history: history[1].update(endorsement=history[1]["endorsement"].replace("— n", "— m")), "bad-endorsement"),
    "one-left-out": (lambda history: history.pop(1), "bad-endorsement"),
    "beginning-cut-off": (lambda history: history.pop(0), "the key before it is missing"),
    "one-twice": (lambda history: history.append(dict(history[0])), "twice"),
    "other-form": (lambda history: history[0].update(verifier_key=history[0]["verifier_key"] + " "), "canonical form"),
    "garbage-key": (lambda history: history[0].update(verifier_key="garbage"), "malformed-key"),
    "unknown-member": (lambda history: history[0].update(since=1), "no key history"),
    "end-cut-off": (lambda history: history.pop(), "does not know"),
}


@pytest.mark.parametrize(("change", "why"), WRONG.values(), ids=WRONG)
def test_a_history_that_is_not_sound_is_refused(tmp_path: Path, change: Callable[[list[dict[str, Any]]], object], why: str) -> None:
    """Every entry of a history is verified; the error names the file, and says to copy both files."""
    files = Files.create(tmp_path, rotations=2)
    files.edit(change)
    before = {file: file.read_bytes() for file in (files.key, files.history)}
    for ask in (files.load, files.prepare):
        with pytest.raises(ConfigurationError, match=r"keys\.json") as wrong:
            ask()
        assert why in str(wrong.value)
        assert "opy" in str(wrong.value)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff", b"[" * 100_000, b"{}", b"[1]", b'"x"'])
def test_what_is_no_history_is_refused(tmp_path: Path, content: bytes) -> None:
    """Any other content raises an error that names the file."""
    files = Files.create(tmp_path)
    files.history.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"keys\.json"):
        files.load()


def test_a_history_of_another_origin_is_refused(tmp_path: Path) -> None:
    """The error names both origins, since one of them was changed by mistake."""
    files = Files.create(tmp_path)
    with pytest.raises(ConfigurationError, match=r"'notary\.example/x'.*'notary\.example/y'"):
        keys.load_history(files.history, "notary.example/y", keys.load(files.key).public_key())


def test_half_a_copy_is_refused(tmp_path: Path) -> None:
    """A machine with only one of the two files of a rotation neither serves nor rotates; the error says which files to copy."""
    Files.create(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    new = Files(tmp_path / "new")
    new.rotate()
    for name, source, target in (("history", new.history, "keys.json"), ("key", new.key, "k.pem")):
        half = Files(Path(shutil.copytree(tmp_path / "old", tmp_path / f"only-the-{name}")))
        shutil.copy(source, half.key.parent / target)
        keys.create(half.key.parent / "k.pem.next")  # left by a rotation that was interrupted here
        before = {file: file.read_bytes() for file in half.key.parent.iterdir()}
        for ask in (half.load, half.prepare, half.present):
            with pytest.raises(ConfigurationError, match=r"opy both files, key and history, .*docs/runbook\.md"):
                ask()
        assert {file: file.read_bytes() for file in half.key.parent.iterdir()} == before


def test_half_a_copy_of_what_was_prepared_is_refused(tmp_path: Path) -> None:
    """A prepared history without its key, or with another key, is rejected; the error says to copy both."""
    files = Files.create(tmp_path)
    files.prepare()
    key_next = keys.next_of(files.key)
    key = key_next.read_bytes()
    key_next.unlink()
    for is_another in (False, True):
        if is_another:
            keys.create(key_next)
        for ask in (files.prepared, files.prepare, files.put_in_place):
            with pytest.raises(ConfigurationError, match="opy both files"):
                ask()
    assert files.present() == files.load()
    key_next.write_bytes(key)
    files.put_in_place()
    assert len(files.load()) == 2


# ---- the rotation ----


def test_what_is_prepared_is_beside_the_present_files(tmp_path: Path) -> None:
    """`prepare` leaves the present files unchanged; the present key endorses the next one; a second call makes nothing new."""
    files = Files.create(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    prepared = files.prepare()
    assert {file: file.read_bytes() for file in before} == before
    assert sorted(os.listdir(tmp_path)) == ["k.pem", "k.pem.next", "keys.json", "keys.json.next"]
    assert keys.next_of(files.key).stat().st_mode & 0o777 == 0o600
    assert [each.verifier_key for each in prepared.history] == [prepared.present, prepared.verifier_key]
    assert prepared.present == files.load()[0]
    assert (prepared.found, files.prepare().found) == (False, True)
    assert files.prepare().verifier_key == prepared.verifier_key
    following = Files(tmp_path)
    following.key, following.history = keys.next_of(files.key), keys.next_of(files.history)
    assert following.load() == [prepared.present, prepared.verifier_key]


def test_what_was_prepared_takes_the_place(tmp_path: Path) -> None:
    """After the rotation only the two files are left: the old private key is gone."""
    files = Files.create(tmp_path)
    prepared = files.prepare()
    files.put_in_place()
    assert files.load() == [prepared.present, prepared.verifier_key]
    assert sorted(os.listdir(tmp_path)) == ["k.pem", "keys.json"]
    assert files.key.stat().st_mode & 0o777 == 0o600
    files.put_in_place()
    assert files.load() == [prepared.present, prepared.verifier_key]


def test_a_machine_that_missed_a_rotation_takes_the_next_one(tmp_path: Path) -> None:
    """A machine with the files of two rotations ago accepts a rotation that was prepared elsewhere."""
    new = Files.create(tmp_path / "new")
    old = Files(Path(shutil.copytree(tmp_path / "new", tmp_path / "old")))
    new.rotate()
    new.prepare()
    for file in (new.key, new.history):
        shutil.copy(keys.next_of(file), old.key.parent)
    old.put_in_place()
    assert len(old.load()) == 3


def test_links_stay_links(tmp_path: Path) -> None:
    """Symbolic links in the configuration stay; their targets are replaced."""
    real = Files.create(tmp_path / "real")
    (tmp_path / "links").mkdir()
    links = Files(tmp_path / "links")
    links.key.symlink_to(real.key)
    links.history.symlink_to(real.history)
    links.prepare()
    assert keys.next_of(links.key) == keys.next_of(real.key)
    links.put_in_place()
    assert links.key.is_symlink()
    assert links.history.is_symlink()
    assert len(real.load()) == 2


def test_a_history_too_long_to_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key is made when the history is so long that verifiers could not read it."""
    files = Files.create(tmp_path, rotations=1)
    monkeypatch.setattr(keys, "KEYS_MAX", 2)
    with pytest.raises(ConfigurationError, match="no verifier reads a longer one"):
        files.rotate()
    assert sorted(os.listdir(tmp_path)) == ["k.pem", "keys.json"]
    assert len(files.load()) == 2


def test_a_key_open_to_others_is_not_rotated(tmp_path: Path) -> None:
    """A key file open to other users is not rotated: a reader of it could have endorsed another key, so the operator must decide."""
    files = Files.create(tmp_path)
    files.key.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        files.rotate()


@pytest.mark.seconds
@pytest.mark.parametrize("problem", [Killed, pytest.param(OSError, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("history_folder", [pytest.param("", marks=pytest.mark.nightly), "history"], ids=["one-folder", "two-folders"])
def test_whatever_interrupts_a_rotation_the_next_one_goes_on(tmp_path: Path, history_folder: str, problem: type[BaseException]) -> None:
    """After a kill or a disk error at any step of a rotation, then a second rotation with a power loss at any moment:

    a worker can start at each of these moments, and a key that a log may have put in force by then is never lost.
    """
    seen = 0
    for step in itertools.count():
        folder = tmp_path / f"{step}"
        files = Files.create(folder, history_folder, rotations=1)
        first = files.load()
        in_force = ""  # the key in force in the log, once there is a new one
        interrupted = False
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(patch, files.key, files.history)
            disk.fail_after(step, problem)
            try:
                in_force = files.prepare().verifier_key
                files.put_in_place()
            except (Killed, ConfigurationError):
                interrupted = True
                _go_on(files, first, in_force)
        assert disk.is_settled()
        for content in disk.after_power_losses():
            lost = Files(tmp_path / "lost", history_folder)
            lost.history.parent.mkdir(parents=True)
            for name, written in content.items():
                file = tmp_path / "lost" / Path(name).relative_to(folder)
                file.write_bytes(written)
                file.chmod(0o600)
            # The log has the key only if all of `prepare` was on the disk.
            prepared = keys.next_of(lost.history)
            named = json.loads(prepared.read_bytes())[-1]["verifier_key"] if prepared.exists() else ""
            _go_on(lost, first, named)
            shutil.rmtree(tmp_path / "lost")
            seen += 1
        if not interrupted:
            break
    assert step >= 7, "so many steps it has"
    assert seen > 100


def fails_at(step: int, problem: type[BaseException], paths: Sequence[Path], call: Callable[[], object]) -> bool:
    """Run a call on a disk that fails after that many steps. Returns whether it failed."""
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, *paths).fail_after(step, problem)
        try:
            call()
        except (Killed, ConfigurationError):
            return True
    return False


@pytest.mark.parametrize("problem", [Killed, OSError])
def test_an_interrupted_adoption_goes_on(tmp_path: Path, problem: type[BaseException]) -> None:
    """A key of a file takes the place of the present one, endorsed by it, and a prepared rotation is dropped, after a kill at any step."""
    for step in itertools.count():
        files = Files.create(tmp_path / f"{step}", rotations=1)
        files.prepare()
        first, made = files.load(), tmp_path / f"{step}.pem"
        wanted = keys.verifier_key(ORIGIN, keys.create(made).public_key())
        adopt = partial(keys.adopt, made, files.both)
        interrupted = fails_at(step, problem, [files.key, files.history], adopt)
        assert files.present()[: len(first)] == first  # a worker can start
        assert [each.verifier_key for each in adopt()] == [*first, wanted]
        assert files.load() == [*first, wanted]
        assert not list(files.key.parent.rglob("*.next"))
        if not interrupted:
            break
    assert step >= 4


@pytest.mark.parametrize("problem", [Killed, OSError])
def test_an_interrupted_replacement_of_a_lost_key_goes_on(tmp_path: Path, problem: type[BaseException]) -> None:
    """After a kill at any step of a new beginning, the same calls again leave a history that begins with the key in the key file."""

    def replace(files: Files) -> None:
        keys.begin_anew(files.both, [bytes(32)])
        keys.end_anew(files.both)

    for step in itertools.count():
        files = Files.create(tmp_path / f"{step}")
        files.key.unlink()
        interrupted = fails_at(step, problem, [files.history], partial(replace, files))
        if not files.key.exists():
            replace(files)
        assert len(files.load()) == 1
        if not interrupted:
            break
    assert step >= 6


def _go_on(files: Files, first: list[str], in_force: str) -> None:
    """A worker can start; `notary key rotate` completes a rotation that the log has, or else makes another key."""
    present = files.present()
    assert present[: len(first)] == first
    keys.finish(files.both)
    waiting = files.prepared()
    if in_force and present[-1] != in_force:
        assert waiting is not None
        assert waiting.verifier_key == in_force
        files.put_in_place()
    elif present == first:
        files.rotate()
    known = files.load()
    assert known[: len(first)] == first
    assert len(known) > len(first)
    assert not in_force or known[-1] == in_force
    assert not list(files.key.parent.rglob("*.next"))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_former_key_signs_fills_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A former key beside the present one signs only fills, and its file is read when a fill needs it."""
    present, former = keys.create(tmp_path / "k.pem"), keys.create(tmp_path / "old.pem")
    ring = Keyring(Files(tmp_path).both, lambda: 0.0)
    of_present, of_former = (key.public_key().public_bytes_raw() for key in (present, former))
    assert ring.fill_key_for(of_former) is None
    (tmp_path / "old.pem").rename(tmp_path / "k.pem.former")
    signing = ring.fill_key_for(of_former)
    assert signing is not None
    assert signing.public_key == of_former
    assert ring.fill_key_for(of_present) is ring.key_for(of_present)
    assert ring.key_for(of_former) is None
    assert ring.public_keys() == [of_present]
    assert ring.fill_key_for(bytes(32)) is None
    (tmp_path / "k.pem.former").chmod(0o644)
    assert ring.fill_key_for(of_former) is None
    assert "cannot use the former key" in caplog.text


def test_an_unfit_prepared_key_keeps_no_worker_from_starting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An operator copies it before it belongs to the worker's user. It is not in force yet, and is found once it is fit."""
    present, following = keys.create(tmp_path / "k.pem"), keys.create(tmp_path / "k.pem.next")
    (tmp_path / "k.pem.next").chmod(0o644)
    now_s = itertools.count()
    ring = Keyring(Files(tmp_path).both, lambda: float(next(now_s)))
    assert ring.public_keys() == [present.public_key().public_bytes_raw()]
    assert "the prepared key cannot be used" in caplog.text
    assert ring.key_for(following.public_key().public_bytes_raw()) is None
    (tmp_path / "k.pem.next").chmod(0o600)
    assert ring.key_for(following.public_key().public_bytes_raw()) is not None


def test_a_history_that_lacks_the_key_in_force_is_read_once_a_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator has copied the next key without its history. A worker has hundreds of steps a second, and each would read and log."""
    files = Files.create(tmp_path)
    now_s = 1000.0
    receipt_key = ReceiptKey(Keyring(files.both, lambda: now_s), None)
    following = files.prepare().key.public_key().public_bytes_raw()
    history_next = files.both.next.history.rename(tmp_path / "forgotten.json")
    in_force = LogState(bytes(32), "O=N", ORIGIN, bytes(32), following, (following,), 1)
    reads: list[Path] = []
    load_history = keys.load_history
    monkeypatch.setattr(keys, "load_history", lambda file, *of: reads.append(file) or load_history(file, *of))
    for _ in range(200):
        receipt_key.applied(Ready({}, 0, log_state=in_force))
        now_s += 0.01
    assert (len(reads), caplog.text.count("the key history does not end with the key in force yet")) == (2, 2)
    history_next.rename(files.both.next.history)
    now_s += 1
    receipt_key.applied(Ready({}, 0))
    assert receipt_key.private_key.public_key().public_bytes_raw() == following
    assert len(receipt_key.history) == 2


def test_a_prepared_key_is_found_without_the_present_one(tmp_path: Path) -> None:
    """A running worker needs no key file. With the prepared files it needs none after the rotation either."""
    files = Files.create(tmp_path)
    ring = Keyring(files.both, lambda: 0.0)
    prepared = files.prepare()
    files.key.unlink()
    assert ring.key_for(prepared.key.public_key().public_bytes_raw()) is not None
