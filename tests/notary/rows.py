"""Rows that no worker wrote, in the index of a worker that does not run: damage, and rows of other software."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from notary.index import Index, IndexSettings, viewing
from notary.index.rocks import RocksStore
from notary.index.store import Store


@contextmanager
def opened(directory: Path) -> Iterator[Index]:
    """Open an index, of whatever notary and log it is, for the length of a block."""
    with viewing(directory) as view:
        notary_name, log_identity = view.notary_name, view.log_identity
    index = Index.open(directory, notary_name=notary_name, log_identity=log_identity)
    try:
        yield index
    finally:
        index.close()


def put_row(index: Index, family: str, key: bytes, value: bytes | None) -> None:
    """Write a row into an open index directly, or delete it (`value` None), without the index's own code."""
    _put(index._store, family, key, value)


def put_closed_row(directory: Path, family: str, key: bytes, value: bytes | None) -> None:
    """Write or delete a row of an index that is not open, and that may not open any more then."""
    store = RocksStore.open(directory, IndexSettings(cache_bytes=8 << 20, write_buffer_bytes=8 << 20))
    _put(store, family, key, value)
    store.close()


def _put(store: Store, family: str, key: bytes, value: bytes | None) -> None:
    batch = store.new_batch()
    if value is None:
        batch.delete(key, store.handle(family))
    else:
        batch.put(key, value, store.handle(family))
    store.write(batch)
