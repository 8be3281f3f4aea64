"""The manifests of a store, which is not trusted."""

from collections.abc import Iterator
from typing import Any

import pytest

from notary.archive.segment import find
from notary.receipts.errors import NotVerified
from tests.notary.archive.streamed import NAME


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
