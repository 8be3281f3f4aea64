"""Rows that no worker wrote: damage, and what other software leaves."""

from notary.index import Index


def put_row(index: Index, family: str, key: bytes, value: bytes) -> None:
    """Put a row into an open index, past everything that it knows."""
    batch = index._store.new_batch()
    batch.put(key, value, index._store.handle(family))
    index._store.write(batch)
