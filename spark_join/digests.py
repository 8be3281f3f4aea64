"""Files held against the SHA-256 that was written down of them, where the executors read them."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

_BLOCK_BYTES = 1 << 20


class Other(msgspec.Struct, frozen=True):
    """A file that is not what it was."""

    path: str
    sha256: str
    """That was written down, hex"""
    found: str
    """The same of what is there, or why nothing is"""


def digests(session: SparkSession, folder: Path, paths: Collection[str]) -> DataFrame:
    """path and found, the SHA-256 in hex, of files in `folder`, which all executors reach."""

    def hashed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = []
            for path in batch.column("path").to_pylist():
                digest = sha256()
                try:
                    with open(folder / path, "rb") as file:
                        while block := file.read(_BLOCK_BYTES):
                            digest.update(block)
                    found.append(digest.hexdigest())
                except OSError as problem:
                    found.append(f"nothing that can be read ({problem.strerror})")
            yield pa.RecordBatch.from_arrays([batch.column("path"), pa.array(found)], names=["path", "found"])

    listed = session.createDataFrame([(path,) for path in paths], "path string")
    spread = listed.repartition(max(1, min(len(paths), 2 * session.sparkContext.defaultParallelism)))
    return spread.mapInArrow(hashed, "path string, found string")


def first_other(session: SparkSession, folder: Path, sha256_of: Mapping[str, str]) -> Other | None:
    """The first of the files that has another SHA-256 than it should, or that is not there."""
    listed = session.createDataFrame(list(sha256_of.items()), "path string, sha256 string")
    other = digests(session, folder, sha256_of.keys()).join(listed, "path").where(F.col("found") != F.col("sha256"))
    first = other.orderBy("path").head()
    return None if first is None else Other(first.path, first.sha256, first.found)
