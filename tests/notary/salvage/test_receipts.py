"""Every file that is named is read: a receipt that nobody reads is lost for good."""

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from notary.salvage import receipts
from notary.salvage.receipts import read_receipts
from notary.salvage.statements import SourceRefused
from tests.notary.party import NOTARY, spend


def count(source: Path) -> tuple[int, int]:
    """Returns the number of receipts and requests in a source."""
    return read_receipts([source], NOTARY, []).counts[str(source)]


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    """A file with one request, outside the folder that is named."""
    file = tmp_path / "request.json"
    file.write_text(json.dumps(spend()))
    return file


def test_a_pipe_is_read(request_file: Path) -> None:
    """A named pipe, as of `<(zcat …)`, is read like a file."""
    reading, writing = os.pipe()
    os.write(writing, request_file.read_bytes())
    os.close(writing)
    assert count(Path(f"/dev/fd/{reading}")) == (0, 1)
    os.close(reading)


@pytest.mark.parametrize("name", [".hidden.json", "party/.kept/r.json"])
def test_hidden_files_are_read(request_file: Path, tmp_path: Path, name: str) -> None:
    """A name with a dot in front hides nothing, named or found in a folder."""
    file = tmp_path / "receipts" / name
    file.parent.mkdir(parents=True)
    request_file.rename(file)
    assert count(file) == count(tmp_path / "receipts") == (0, 1)


def test_linked_folders_are_read_once(request_file: Path, tmp_path: Path) -> None:
    """A folder that a link leads to is read, and links that lead back, or twice to one file, add nothing."""
    (tmp_path / "party").mkdir()
    request_file.rename(tmp_path / "party" / "r.json")
    folder = tmp_path / "receipts"
    folder.mkdir()
    (folder / "linked").symlink_to(tmp_path / "party")
    (folder / "again").symlink_to(tmp_path / "party" / "r.json")
    (tmp_path / "party" / "back").symlink_to(folder)
    assert count(folder) == (0, 1)


@pytest.mark.parametrize("kind", ["pipe", "dangling"])
def test_a_folder_with_something_else_is_refused(request_file: Path, tmp_path: Path, kind: str) -> None:
    """A pipe in a folder, or a link to nothing, is not skipped silently."""
    if kind == "pipe":
        os.mkfifo(tmp_path / "other")
    else:
        (tmp_path / "other").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SourceRefused, match="other is neither a file nor a folder"):
        count(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"decisions": [null]}', '{"requests": []}', None])
def test_a_source_with_nothing_is_refused(tmp_path: Path, content: str | None) -> None:
    """A source without a receipt or a request was probably mistyped, or its producer failed."""
    source = tmp_path / "source"
    source.mkdir() if content is None else source.write_text(content)
    with pytest.raises(SourceRefused, match="source has neither a receipt nor a request"):
        count(source)


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its receipts are not skipped silently."""
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def closed(folder: str) -> object:
        if folder.endswith("closed"):
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(SourceRefused, match="closed cannot be read: Permission denied"):
        count(tmp_path)


@pytest.mark.parametrize("kind", ["no UTF-8", "an I/O error"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, kind: str) -> None:
    """It is named."""
    file = tmp_path / "r.json" if kind == "no UTF-8" else Path("/proc/self/mem")
    if kind == "no UTF-8":
        file.write_bytes(b'"\xff"')
    with pytest.raises(SourceRefused, match=f"{file} cannot be read"):
        count(file)


def test_a_decision_without_its_receipt_is_refused(request_file: Path) -> None:
    """It is not skipped silently. The error names its line."""
    decision = {"transaction_id": "00" * 32, "position": 0, "outcome": "committed", "reason": None, "conflicts": [], "log_time": 1}
    with request_file.open("a") as file:
        file.write(f"\n[]\n{json.dumps(decision)}")
    with pytest.raises(SourceRefused, match=r"request\.json:3 does not verify: .*no member `receipt`. Leave it out"):
        count(request_file)


@pytest.mark.parametrize("content", ["{}\n" * 200_000, f"[{'{},' * 200_000}{{}}]"])
def test_the_first_bad_receipt_ends_the_reading(tmp_path: Path, content: str) -> None:
    """A party's file or array of a million objects that are no receipts is refused at the first one: they never fill the memory."""
    (tmp_path / "r.json").write_text(content)
    tracemalloc.start()
    try:
        with pytest.raises(SourceRefused, match=r"r\.json:1(\[0\])? does not verify"):
            count(tmp_path / "r.json")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10 << 20


def test_a_file_is_read_in_pieces(request_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value, or an array's item, that is longer than a piece is read up to the limit; a longer one is refused, and nothing in part."""
    text = request_file.read_text()
    request_file.write_text(f"{text}\n[ {text},\n{text} ,{text}] []{text}")
    monkeypatch.setattr(receipts, "_CHUNK_CHARS", 7)
    monkeypatch.setattr(receipts, "VALUE_CHARS_MAX", len(text))
    assert count(request_file) == (0, 5)
    monkeypatch.setattr(receipts, "VALUE_CHARS_MAX", len(text) - 8)
    with pytest.raises(
        SourceRefused, match=rf"request\.json:1 is no JSON: .* \(or a value of more than {len(text) - 8} characters: divide it"
    ):
        count(request_file)


@pytest.mark.parametrize("content", ['["' + "\u00e4" * 30 + '"]', "[123456789012345678901234567890]", '["\\ud800"]', "[[[]]]", "5"])
def test_values_of_another_kind_are_refused(tmp_path: Path, content: str) -> None:
    """JSON that is neither a decision nor a request is an error with its place, whatever its characters are."""
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(SourceRefused, match=r"r\.json:1.* holds .*: neither a decision nor a request"):
        count(tmp_path / "r.json")


@pytest.mark.parametrize("content", ["[" * 100_000, "[]\n}", "[,", "]", ",", "["])
def test_text_that_is_no_json_is_refused(tmp_path: Path, content: str) -> None:
    """The line of the value is named, however deep it is."""
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(SourceRefused, match=rf"r\.json:{1 + content.count(chr(10))} is no JSON: "):
        count(tmp_path / "r.json")


@pytest.mark.parametrize("after", ["", ",", ",]", ": []", " {}]"])
def test_an_array_that_is_cut_off_is_refused(request_file: Path, after: str) -> None:
    """Its first items are read, and the place where it is no array any more is named."""
    with request_file.open("r+") as file:
        text = f"[{file.read()}\n{after}"
        file.seek(0)
        file.write(text)
    with pytest.raises(SourceRefused, match=r"request\.json:2 is no JSON: "):
        count(request_file)


@pytest.mark.parametrize("member", ["content_hash", "transaction_id", "\\ud800"])
@pytest.mark.parametrize("value", ['"\\ud800"', "1e999", "NaN", "-" + "9" * 400, "null", "[{}]"])
def test_odd_members_are_refused(tmp_path: Path, member: str, value: str) -> None:
    """An object with a member of odd text or numbers is refused as a decision or a request, with its place."""
    (tmp_path / "r.json").write_text(f'{{"{member}": {value}, "outcome": {value}, "receipt": {value}, "position": {value}}}')
    with pytest.raises(SourceRefused, match=r"r\.json:1"):
        count(tmp_path / "r.json")
