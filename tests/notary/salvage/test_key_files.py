"""The key files of a salvage, apart from what whole salvages show (tests/notary/cli/test_salvage.py)."""

from pathlib import Path

from notary.config import Config
from notary.salvage.key_files import KeyFiles


def test_keys_of_attempts_are_in_their_order(tmp_path: Path) -> None:
    """Not in that of their names: the key of the eleventh attempt is the last."""
    files = KeyFiles(Config("O=Notary", "notary.example/x", directory=str(tmp_path)), tmp_path, lost=False)
    made = [files.make().public_key for _ in range(11)]
    assert list(files.own()) == made
    assert [file.name for file in files.own().values()] == [f"key-{number}.pem" for number in range(11)]
