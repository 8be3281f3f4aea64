"""Rows of `META` that do not fit: another owner, another format, a gap."""

from pathlib import Path

import pytest

from joiner.history import HISTORY_KEPT
from notary.index import INDEX_FORMAT_VERSION, Index, rows
from notary.index.store import META
from ordering.errors import ConfigurationError, Fatal
from tests.notary.index.test_index import _effect, _open, _step
from tests.notary.rows import put_closed_row, put_row


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"notary_name": "M"}, "its notary is 'N', wanted 'M'"),
        ({"log_identity": "K"}, "its log is 'L', wanted 'K'"),
    ],
)
def test_an_index_of_another_notary_is_rejected(directory: Path, change: dict[str, str], named: str) -> None:
    """An index of another notary or log is rejected with the difference, and stays unchanged."""
    _open(directory).close()
    with pytest.raises(ConfigurationError, match=named):
        _open(directory, **change)
    _open(directory).close()


def test_an_index_of_a_newer_format_is_rejected(directory: Path) -> None:
    """An index of a newer format is rejected."""
    _open(directory).close()
    put_closed_row(directory, META, rows.FORMAT_KEY, rows.U32.pack(INDEX_FORMAT_VERSION + 1))
    with pytest.raises(ConfigurationError, match=f"format version {INDEX_FORMAT_VERSION + 1}"):
        _open(directory)


def test_effects_with_a_gap(index: Index) -> None:
    """An index without the row of one effect raises an error when the joiner resumes: a comparison with the log would miss that record."""
    for step in range(3):
        index.apply(_step(step))
    put_row(index, META, rows.effect_key(2), rows.effect_row(_effect(HISTORY_KEPT + 2)))
    with pytest.raises(Fatal, match="have a gap"):
        index.joiner_state()
