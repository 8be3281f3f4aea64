"""The manifests of a store, which is not trusted."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.archive.segment import HEAD, Segment, find
from notary.receipts import VerifierKey, sign_note
from notary.receipts.errors import NotVerified
from notary.snapshots.store import FILES, MANIFESTS
from ordering.errors import ConfigurationError
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


async def test_manifests_are_read_beside_each_other(tmp_path: Path) -> None:
    """Each takes some round trips to a bucket, and a day has 17,000 of them: `find` waits for several at a time."""
    made = Streamed(tmp_path)
    await made.append(*FIRST)
    sealing = made.process()
    for head in (1, 2):
        await sealing.seal(made.command(head))
    both, chunks = threading.Barrier(2, timeout=30), made.store.chunks

    def slow(folder: str, name: str) -> Iterator[bytes]:
        both.wait()
        yield from chunks(folder, name)

    made.store.chunks = slow  # type: ignore[method-assign]
    assert [segment.parts[0].offset_first for segment in made.found()] == [0, 1]


async def test_an_unreadable_manifest_is_named(tmp_path: Path) -> None:
    """Its own rights close it, or a bucket's storage class: the library's error names neither the file nor its task."""
    made = Streamed(tmp_path)
    await made.append(*FIRST)
    await made.process().seal(made.command(2))
    (segment,) = made.found()

    def closed(folder: str, name: str) -> Iterator[bytes]:
        raise PermissionError(errno.EACCES, "The operation is not valid for the object's storage class")

    made.store.chunks = closed  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match=f"the manifest {segment.name} cannot be read: The operation is not valid"):
        await made.process().seal(made.command(2))


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


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("payload_partitions", 2_000_000_000),
        ("sha256", f"../{FILES}/{'0' * 64}"),
        ("records", -1),
        ("file_bytes", 1 << 64),
        ("parts", [{"partition": 0, "offset_first": 0, "offset_end": 1 << 64, "offset_last": 0, "fingerprint": "00" * 32}]),
        ("parts", [{"partition": 0, "offset_first": 0, "offset_end": 1, "offset_last": 0, "fingerprint": "no hash"}]),
    ],
)
async def test_a_thief_of_a_former_key_signs_odd_members(tmp_path: Path, member: str, value: object) -> None:
    """No manifest of a former key has `fetch` fill the memory, read a file outside the store, or end without the manifest's name."""
    made = Streamed(tmp_path)
    await made.append(*FIRST)
    await made.process().seal(made.command(2))
    (note,) = (tmp_path / "segments" / MANIFESTS).iterdir()
    (segment,) = made.found()
    forged = {**msgspec.to_builtins(msgspec.convert(segment, Segment, from_attributes=True)), member: value}
    note.write_text(sign_note(f"{HEAD}\n{msgspec.json.encode(forged).decode()}\n", [(ORIGIN, made.key)]))
    with pytest.raises(NotVerified, match=f"the manifest {note.name} does not decode: .*{member}"):
        made.found()
