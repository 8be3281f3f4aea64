"""Files that outlive a stage: Parquet folders with all their rows, files that survive a crash, and files with a recorded SHA-256.

Executors write Parquet files, and the driver lists them. If executors on other machines write to another folder, the driver lists too few
files or none, and Spark reports success. A reader that gives the schema then sees too few rows and no error. So the rows are counted.

A file is synced to the disk before another file refers to it. Executors compare a file with its SHA-256 when they read it.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import IO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_join.engine.columns import frame_of, results_of
from spark_join.errors import CouldNotVerify

_PATTERN: Final = re.compile(r"[\\\[\]{}*?]")
PREFIX_BYTES: Final = 8
PREFIXES_MAX: Final = 32_000_000
"""Prefixes by which an executor filters rows: 0.5 GB in each Python worker. With more, all rows go on to Spark."""


def read_files(session: SparkSession, schema: str | StructType, paths: Iterable[Path], base: Path | None = None) -> DataFrame:
    """Returns the rows of these Parquet files or folders, and of no others. `base` is the folder above those of partitions.

    Spark takes each path for a glob pattern: unescaped, it would read `log1` in place of `log[1]`.
    """
    reader = session.read.schema(schema)
    reader = reader if base is None else reader.option("basePath", str(base))
    return reader.parquet(*[_PATTERN.sub(r"\\\g<0>", str(path)) for path in paths])


def write_complete(frame: DataFrame, folder: Path, compression: str = "snappy") -> int:
    """Write `frame` into `folder`, which must not exist yet; return the number of rows.

    Raises `CouldNotVerify` unless the driver finds all of them there.
    """
    counted = Observation()
    frame.observe(counted, F.count("*").alias("rows")).write.option("compression", compression).parquet(str(folder))
    rows: int = counted.get["rows"]
    refuse_fewer(folder, rows)
    return rows


def refuse_fewer(folder: Path, rows: int) -> None:
    """Raise `CouldNotVerify` unless the files in `folder` have exactly `rows` rows, by their footers, and there is a file."""
    files = list(folder.glob("*.parquet"))
    found = rows_in(files)
    if found != rows or not files:  # Spark writes a file also for no rows
        there = f"{found} are there" if files else "no file is there"
        raise CouldNotVerify(
            f"{rows} rows were written into {folder}, and {there}: it is another folder for the driver than for some executors,"
            " or files were taken out of it. Name one with --work and --out that all of them reach"
        )


def rows_in(files: Iterable[Path]) -> int:
    """Returns the number of rows of Parquet files, from their footers; reads nothing else of them."""
    return sum([pq.read_metadata(file).num_rows for file in files])


def sync_files(folder: Path) -> None:
    """Sync all files and folders in `folder`, at any depth, so that they survive a crash of this machine.

    Executors on other machines write over the network: the server of a shared folder has a file once they have closed it.
    """
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(path) / name)
        sync_folder(Path(path))


def write_last(file: Path, content: bytes) -> None:
    """Write a file that refers to other files, which are already synced. The rename is atomic.

    A crash here leaves the complete file under its name, or no file of that name.
    """
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_bytes(content)
    _sync(temporary)
    temporary.rename(file)
    for folder in file.parents[:2]:  # the file's folder may be new too, so sync the folder's own name too
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names in it survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(opened: IO[bytes]) -> None:
    """Sync the content of an open file; its name is not synced."""
    opened.flush()
    os.fsync(opened.fileno())


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        sync_file(opened)


def file_hashes(session: SparkSession, folder: Path, paths: Collection[str]) -> list[tuple[str, str | None, str]]:
    """Returns path, SHA-256 in hex and problem of files in `folder`, which all executors must reach, in the order of the paths.

    For a file that cannot be read, the SHA-256 is None and the problem says why.
    """

    def hashed(path: str) -> tuple[str, str | None, str]:
        try:
            with open(folder / path, "rb") as file:
                return path, file_digest(file, "sha256").hexdigest(), ""
        except OSError as problem:
            return path, None, f"nothing that can be read ({problem.strerror})"

    return results_of(session, hashed, sorted(paths), tasks_a_core=2)


def refuse_other_bytes(session: SparkSession, folder: Path, sha256_of: Mapping[str, str], listed_by: str) -> None:
    """Hash all files of `sha256_of` in `folder`. Raises `CouldNotVerify` for one that is missing or has another hash.

    The error names `listed_by` as the file that has the expected hashes.
    """
    for path, found, problem in file_hashes(session, folder, sha256_of.keys()):
        if found != sha256_of[path]:
            raise CouldNotVerify(f"{folder / path}: {listed_by} says SHA-256 {sha256_of[path]}, and there is {found or problem}")


def rows_among(session: SparkSession, folder: Path, sha256_of: Mapping[str, str], columns: Sequence[str], asked: Path) -> DataFrame:
    """Reads Parquet files in `folder`, each once: hashes its bytes, decodes them, and returns the wanted rows, with a column problem.

    A row is wanted if the value in the first of the binary `columns` begins with a prefix in the files of `asked`. Those have the column
    prefix, `PREFIX_BYTES` each. A file that is missing or has another hash gives a row that has only problem.
    """
    schema = pa.schema([*[(name, pa.binary()) for name in columns], ("problem", pa.string())])

    def found(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path, expected in zip(batch.column("path").to_pylist(), batch.column("sha256").to_pylist(), strict=True):
                try:
                    content = (folder / path).read_bytes()
                    there = sha256(content).hexdigest()
                except OSError:
                    there = "nothing that can be read"
                if there != expected:
                    yield pa.RecordBatch.from_pylist([{"problem": f"{path} {there}"}], schema)
                    continue
                parquet, prefixes = pq.ParquetFile(pa.BufferReader(content)), _prefixes(asked)
                for group in range(parquet.num_row_groups):
                    rows = parquet.read_row_group(group, columns=list(columns))
                    if prefixes is not None:
                        rows = rows.filter(pc.is_in(pc.binary_slice(rows.column(0), 0, PREFIX_BYTES), value_set=prefixes))
                    yield from rows.append_column("problem", pa.nulls(rows.num_rows, pa.string())).cast(schema).to_batches()

    tasks = max(1, min(len(sha256_of), 4 * session.sparkContext.defaultParallelism))
    listed = frame_of(session, list(sha256_of.items()), "path string, sha256 string").repartition(tasks)
    return listed.mapInArrow(found, from_arrow_schema(schema))


@lru_cache(maxsize=1)
def _prefixes(asked: Path) -> pa.Array | None:
    """Returns all prefixes; None if they are too many. A Python worker keeps them from one file to the next."""
    files = sorted(asked.glob("*.parquet"))
    if rows_in(files) > PREFIXES_MAX:
        return None
    tables = [pq.read_table(file, columns=["prefix"]) for file in files]
    return pa.concat_tables(tables).column(0).combine_chunks() if tables else pa.array([], pa.binary())
