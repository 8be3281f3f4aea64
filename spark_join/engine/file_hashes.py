"""Compares files with their recorded SHA-256, on the executors, which read them."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import file_digest
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_join.errors import CouldNotVerify


def file_hashes(session: SparkSession, folder: Path, paths: Collection[str]) -> DataFrame:
    """Returns path, found (SHA-256 in hex) and problem of files in `folder`, which all executors must reach.

    For a file that cannot be read, found is null and problem says why.
    """

    def hashed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found: list[str | None] = []
            problems: list[str | None] = []
            for path in batch.column("path").to_pylist():
                try:
                    with open(folder / path, "rb") as file:
                        found.append(file_digest(file, "sha256").hexdigest())
                    problems.append(None)
                except OSError as problem:
                    found.append(None)
                    problems.append(f"nothing that can be read ({problem.strerror})")
            columns = [batch.column("path"), pa.array(found, pa.string()), pa.array(problems, pa.string())]
            yield pa.RecordBatch.from_arrays(columns, names=["path", "found", "problem"])

    listed = session.createDataFrame([(path,) for path in paths], "path string")
    spread = listed.repartition(max(1, min(len(paths), 2 * session.sparkContext.defaultParallelism)))
    return spread.mapInArrow(hashed, "path string, found string, problem string")


def refuse_other_bytes(session: SparkSession, folder: Path, sha256_of: Mapping[str, str], listed_by: str) -> None:
    """Hash all files of `sha256_of` in `folder`. Raises `CouldNotVerify` for one that is missing or has another hash.

    The error names `listed_by` as the file that has the expected hashes.
    """
    listed = session.createDataFrame(list(sha256_of.items()), "path string, sha256 string")
    other = file_hashes(session, folder, sha256_of.keys()).join(listed, "path").where(~F.col("found").eqNullSafe(F.col("sha256")))
    if first := other.orderBy("path").head():
        raise CouldNotVerify(f"{folder / first.path}: {listed_by} says SHA-256 {first.sha256}, and there is {first.found or first.problem}")
