"""The manifests of a store, which is not trusted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from notary.archive.segment import find
from notary.receipts.errors import NotVerified
from notary.snapshots.store import MANIFESTS
from tests.notary.archive.streamed import FIRST, NAME, Streamed


def test_a_manifest_of_a_false_size_is_not_read_further() -> None:
    """A store lists 10 bytes and sends without end: reading stops at the most bytes that a manifest may have."""
    sent = 0

    class Endless:
        def sizes(self, folder: str) -> dict[str, int]:
            return {"x.note": 10}

        def chunks(self, folder: str, name: str) -> Iterator[bytes]:
            nonlocal sent
            while sent < 64:
                sent += 1
                yield bytes(1 << 20)

    store: Any = Endless()
    with pytest.raises(NotVerified, match=r"the manifest x\.note has more than"):
        list(find(store, [], NAME))
    assert sent == 2


async def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    """The error for a file among the manifests that is none has its name."""
    made = Streamed(tmp_path)
    await made.append(*FIRST)
    await made.process().seal(made.command(1))
    (made.folder / "segments" / MANIFESTS / "stray.txt").write_text("hello")
    with pytest.raises(NotVerified, match=r"the manifest stray\.txt: a note is"):
        made.found()
