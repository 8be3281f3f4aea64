"""Archives whose files do not have what their ranges say: an error with the file's name, and never records of another file."""

import json
import os
from hashlib import file_digest, sha256
from io import BufferedReader
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from notary.archive.archived import ArchivedLog
from notary.archive.segment import BATCH_RECORDS, RECORD
from ordering.errors import ConfigurationError
from ordering.log import ORDERING
from tests.open_files import errors_with_few_open_files

COLUMNS: dict[str, tuple[pa.DataType, Any]] = {
    "offset": (pa.int64(), 0),
    "append_time_ms": (pa.int64(), 7),
    "key": (pa.binary(), None),
    "value": (pa.binary(), b"true"),
}
FILE = "ordering/partition=0/00000001-x.parquet"


def archive(folder: Path, columns: dict[str, tuple[pa.DataType, Any]], count: int = 1) -> ArchivedLog:
    """Returns an archive of one ordering record, or of `count` with rising offsets."""
    file = folder / FILE
    file.parent.mkdir(parents=True)
    fields = pa.schema([(name, type_) for name, (type_, _) in columns.items()])
    rows = [list(range(count)) if name == "offset" and count > 1 else [value] * count for name, (_, value) in columns.items()]
    pq.write_table(pa.table(rows, schema=fields), file)
    entry = {"path": FILE, "topic": "ordering", "partition": 0, "offset_first": 0, "offset_end": count, "records": count}
    entry["sha256"] = sha256(file.read_bytes()).hexdigest()
    (folder / "ranges").mkdir()
    (folder / "ranges" / "00000001.json").write_text(json.dumps({"archive_version": 2, "payload_partitions": 1, "files": [entry]}))
    return ArchivedLog(folder)


@pytest.mark.parametrize(
    ("column", "type_", "value"),
    [
        ("offset", pa.float64(), 0.5),
        ("offset", pa.int64(), None),
        ("append_time_ms", pa.string(), "x"),
        ("append_time_ms", pa.int64(), None),
        ("key", pa.int64(), 5),
        ("value", pa.string(), "x"),
        ("another", pa.binary(), b""),
    ],
)
def test_other_columns_are_an_error(tmp_path: Path, column: str, type_: pa.DataType, value: Any) -> None:
    """Ranges are not signed, so a right hash proves nothing: a column of another type or name, or a number that is missing, is an error."""
    log = archive(tmp_path, COLUMNS | {column: (type_, value)})
    with pytest.raises(ConfigurationError, match=rf"{FILE} .*(is damaged|has other columns)"):
        list(log.records(ORDERING, 0))


def test_the_hashed_file_is_the_file_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file takes the name between hashing and reading: the records are those of the file that was hashed."""
    log = archive(tmp_path, COLUMNS)

    def then_replaced(opened: BufferedReader, name: str) -> Any:
        found = file_digest(opened, name)
        pq.write_table(pa.table([[0], [7], [None], [b"false"]], schema=RECORD), tmp_path / "new")
        (tmp_path / "new").replace(tmp_path / FILE)
        return found

    monkeypatch.setattr("notary.archive.archived.file_digest", then_replaced)
    assert [record.value for some in log.records(ORDERING, 0) for record in some] == [b"true"]


def test_a_pipe_is_no_file_of_an_archive(tmp_path: Path) -> None:
    """To open a pipe would wait for a writer for ever: it counts as a missing file, and the error names it."""
    log = archive(tmp_path, COLUMNS)
    for name in (FILE, "ranges/00000001.json"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigurationError, match=rf"{FILE} .*cannot be read: there is no regular file\. Take the file from another copy"):
        list(log.records(ORDERING, 0))
    (sentence,) = log.damaged(lambda done, total: None)
    assert f"{FILE} is damaged" in sentence
    with pytest.raises(ConfigurationError, match=r"00000001\.json cannot be read: .*there is no regular file"):
        ArchivedLog(tmp_path)


def test_too_few_open_files_are_no_damage(tmp_path: Path) -> None:
    """A reader has one file of each partition open: the remedy is the limit, and not another copy of a sound archive."""
    log = archive(tmp_path, COLUMNS)
    problems = errors_with_few_open_files(lambda: list(log.records(ORDERING, 0)), ConfigurationError)
    assert problems
    assert [problem for problem in problems if "Raise the limit of open files" not in str(problem) or "copy" in str(problem)] == []


async def test_a_poll_does_not_wait_at_earlier_records(tmp_path: Path) -> None:
    """A poll without records waits for its timeout. One wait for each batch before the first offset made `notary trim` give up."""
    last = 3 * BATCH_RECORDS
    reader = await archive(tmp_path, COLUMNS, last + 1).open_reader({ORDERING: last})
    assert [record.offset for record in await reader.poll(1)] == [last]
