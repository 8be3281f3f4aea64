"""The manifests of a store, which is not trusted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.archive.segment import find
from notary.receipts import VerifierKey, sign_note
from notary.receipts.errors import NotVerified
from notary.snapshots.store import MANIFESTS
from tests.notary.archive.streamed import FIRST, NAME, ORIGIN, Streamed


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


async def test_a_second_signature_by_a_former_key_changes_nothing(tmp_path: Path) -> None:
    """The thief of a former key adds its signature to a segment of the present key: `fetch` must not refuse the segment for it."""
    made, former = Streamed(tmp_path), Ed25519PrivateKey.generate()
    await made.append(*FIRST)
    await made.process().seal(made.command(2))
    (note,) = (tmp_path / "segments" / MANIFESTS).iterdir()
    text, blank, signature = note.read_text().rpartition("\n\n")
    another = sign_note(f"{text}\n", [(ORIGIN, former)]).rpartition(blank)[2]
    note.write_text(f"{text}{blank}{signature}{another}")
    keys = [VerifierKey(ORIGIN, former.public_key().public_bytes_raw()), *made.trusted]
    (segment,) = find(made.store, keys, NAME)
    assert segment.signer == made.public_key
