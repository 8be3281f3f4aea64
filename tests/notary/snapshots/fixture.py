"""`SnapshotFixture`: a notary with an index of some hundred decisions, a store for its snapshots, and `notary snapshot` run on them."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from notary import keys
from notary.config import load
from notary.receipts.note import VerifierKey
from notary.snapshots.manifest import Manifest, sign
from notary.snapshots.store import Folder
from notary.snapshots.take import FoundSnapshot, find
from tests.notary.cli.command import Command
from tests.notary.http.checked_client import CheckedClient
from tests.notary.party import Bank, spend
from tests.notary.process import NotaryDirectory, NotaryProcess
from tests.notary.rows import opened

SMALL = {"INDEX_WRITE_BUFFER_BYTES": 64 << 10, "INDEX_CACHE_BYTES": 1 << 20}
"""Write buffers that are flushed within a few hundred decisions."""


def spent(process: NotaryProcess, bank: Bank, rounds: int = 6) -> dict[str, Any]:
    """Have some hundred requests decided. Returns the decisions by transaction id."""
    with CheckedClient(process.url) as client:
        decisions = [decision for _ in range(rounds) for decision in client.decide(bank, *(spend() for _ in range(100)))]
    return {decision["transaction_id"]: decision for decision in decisions}


class SnapshotFixture:
    """A notary's folder, and its snapshots in the folder `snapshots`."""

    def __init__(self, directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory, self.config = directory, directory.config
        self._command = Command(capsys, "snapshot")
        self.store = directory.path / "snapshots"
        self.index = directory.path / "index" / "worker-1"

    @classmethod
    def copy(cls, template: NotaryDirectory, to: Path, capsys: pytest.CaptureFixture[str]) -> "SnapshotFixture":
        """Returns the fixture of a copy of a notary whose worker has ended."""
        shutil.copytree(template.path, to)
        return cls(NotaryDirectory(to), capsys)

    def snapshot(self, action: str, *flags: str, code: int = 0) -> dict[str, Any]:
        """Run `notary snapshot --json`, which should exit with that code. Returns what it printed; `stderr` is its complaints."""
        given: list[object] = [action, "--config", self.config, "--json", *flags]
        if "--url" not in flags:
            given += ["--url", self.store]
        if action in ("create", "restore") and "--name" not in flags:
            given += ["--name", "worker-1"]
        printed = self._command.run(*given, code=code)
        return {**(json.loads(printed.splitlines()[-1]) if printed else {}), "stderr": self._command.err}

    @property
    def largest(self) -> Path:
        """The largest file of the store."""
        return max((self.store / "files").iterdir(), key=lambda file: file.stat().st_size)

    def age(self) -> None:
        """Make all files of the store older than the margin of `prune`, as files of a store in use are."""
        for file in (self.store / "files").iterdir():
            os.utime(file, (1, 1))

    def found(self) -> list[Manifest]:
        """Returns the manifests that open, by decisions, the highest first."""
        return [each.manifest for each in self.look() if each.manifest is not None]

    def look(self) -> list[FoundSnapshot]:
        """Returns the store's snapshots, as `notary snapshot` finds them."""
        return list(find(Folder(self.store), self.trusted, load(self.config).name))

    @property
    def trusted(self) -> list[VerifierKey]:
        """The keys of the notary whose signatures count."""
        return keys.verifier_keys(load(self.config).key_files).last

    def signed(self, manifest: Manifest) -> str:
        """Put a manifest into the store, signed with the notary's key. Returns its name."""
        config = load(self.config)
        note = sign(manifest, config.origin, keys.load(config.path(config.key_file)))
        (self.store / "manifests" / manifest.name).write_text(note)
        return manifest.name

    def names(self, folder: str) -> set[str]:
        """Returns the names in a folder of the store."""
        return {file.name for file in (self.store / folder).iterdir()} if (self.store / folder).exists() else set()

    def rows(self, index: Path) -> dict[str, list[tuple[bytes, bytes]]]:
        """Opens an index as a worker does. Returns all its rows but those of the metadata."""
        with opened(index) as found:
            return dict(found.contents())
