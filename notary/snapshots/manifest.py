"""`Manifest`: the description of a snapshot, as a signed note: the line `notary/snapshot/v1`, and one line of JSON.

A checkpoint is never mistaken for a manifest: its second line is a number.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.receipts.errors import NotVerified
from notary.receipts.note import VerifierKey, open_note, sign_note

HEAD: Final = "notary/snapshot/v1"
MANIFEST_BYTES_MAX: Final = 64 << 20
"""A file of an index has at most 64 MiB, and a line of some 120 bytes here, so this is enough for an index of 30 TB."""
is_file_of_an_index = re.compile(r"\d{6,20}\.(sst|log)|MANIFEST-\d{6,20}|CURRENT").fullmatch
"""Matches the names of RocksDB's files that make an index; its own logs, options and lock are made anew at every opening."""
_SHA256 = re.compile(r"[0-9a-f]{64}").fullmatch


class SnapshotFile(msgspec.Struct, frozen=True):
    """One file of the index: its name there, its length, and the SHA-256 of its content, which is its name in the store."""

    name: str
    bytes: int
    sha256: str


class SnapshotHistory(msgspec.Struct, frozen=True):
    """The index's history (R10): how many records took effect, and the hash over them, in hex."""

    seen: int
    hash: str


class Manifest(msgspec.Struct, frozen=True):
    """A snapshot: the owner of its index, how far the index had read, and its files."""

    notary: str
    log: str
    """The log's identity, as the index has it."""
    index_format_version: int
    worker: str
    """The worker whose index was copied."""
    made_at_ms: int
    decisions: int
    """The number of decisions, which is the size of the tree."""
    root: str
    log_time_ms: int
    history: SnapshotHistory
    offsets_next: dict[str, int]
    """By topic-partition (`-1`: the ordering topic), the offset to resume at."""
    files: tuple[SnapshotFile, ...]

    @property
    def name(self) -> str:
        """The manifest's name in its store. The last by name is the snapshot that leaves least to replay."""
        return f"{self.decisions:016d}-{self.made_at_ms:014d}-{self.worker}.note"

    @property
    def total_bytes(self) -> int:
        """The length of all files together."""
        return sum(file.bytes for file in self.files)


def sign(manifest: Manifest, origin: str, key: Ed25519PrivateKey) -> str:
    """Returns the signed note of a manifest."""
    return sign_note(f"{HEAD}\n{msgspec.json.encode(manifest).decode()}\n", [(origin, key)])


def open_manifest(note: str, name: str, trusted: Sequence[VerifierKey]) -> Manifest:
    """Returns the manifest of a note. Raises `NotVerified` unless a trusted key signed it, under this name."""
    text, _ = open_note(note, trusted, "malformed-snapshot", MANIFEST_BYTES_MAX)
    head, _, body = text.partition("\n")
    try:
        if head != HEAD:
            raise ValueError(f"it begins with {head!r}, not {HEAD}")
        manifest = msgspec.json.decode(body, type=Manifest)
    except (ValueError, RecursionError) as problem:  # msgspec's errors are of the first type
        raise NotVerified("malformed-snapshot", f"the manifest {name} does not decode: {problem}") from None
    names = [file.name for file in manifest.files if is_file_of_an_index(file.name) and _SHA256(file.sha256) and file.bytes >= 0]
    if len(set(names)) != len(manifest.files) or "CURRENT" not in names:
        raise NotVerified("malformed-snapshot", f"the manifest {name} names files that make no index")
    if manifest.name != name:
        raise NotVerified("malformed-snapshot", f"the manifest {name} is the one of {manifest.name}: it was renamed")
    return manifest
