"""The key files of a salvage, apart from what whole salvages show (tests/notary/cli/test_salvage.py)."""

from pathlib import Path

from notary import keys
from notary.config import Config
from notary.salvage.key_files import KeyFiles


def test_keys_of_attempts_are_in_their_order(tmp_path: Path) -> None:
    """Not in that of their names: the key of the eleventh attempt is the last."""
    files = KeyFiles(Config("O=Notary", "notary.example/x", directory=str(tmp_path)), tmp_path, lost=False)
    made = [files.make().public_key for _ in range(11)]
    assert list(files.own()) == made
    assert [file.name for file in files.own().values()] == [f"key-{number}.pem" for number in range(11)]


def test_other_files_of_the_folder_are_left_alone(tmp_path: Path) -> None:
    """`--work` names any folder. A key in it that no attempt made is no key of this command, and is not removed with its keys."""
    files = KeyFiles(Config("O=Notary", "notary.example/x", directory=str(tmp_path)), tmp_path, lost=True)
    others = [tmp_path / name for name in ("key-backup.pem", "key-of-w1.pem", "key-old-1.pem")]
    for other in others:
        keys.create(other)
    made = files.make()
    assert list(files.own()) == [made.public_key]
    (made_file,) = files.own().values()
    assert made_file.name == "key-0.pem"
    files.adopt(made_file)
    assert [other.exists() for other in (made_file, *others)] == [False, True, True, True]
