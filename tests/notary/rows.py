"""Rows that no worker wrote: damage, and rows of other software."""

from notary.index import Index


def put_row(index: Index, family: str, key: bytes, value: bytes) -> None:
    """Write a row into an open index directly, without the index's own code."""
    batch = index._store.new_batch()
    batch.put(key, value, index._store.handle(family))
    index._store.write(batch)
