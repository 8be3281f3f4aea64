"""Tile paths: each tile has one path, and no other text is a path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notary.tree import TILE_WIDTH, TilePath, format_tile_path, parse_tile_path
from notary.tree.paths import INDEX_MAX, LEVEL_MAX

tiles = st.builds(TilePath, st.none() | st.integers(0, LEVEL_MAX), st.integers(0, INDEX_MAX), st.integers(1, TILE_WIDTH))


@pytest.mark.parametrize(
    ("path", "tile"),
    [
        ("tile/0/000", TilePath(0, 0)),
        ("tile/0/x001/x234/067", TilePath(0, 1_234_067)),
        ("tile/0/x001/000", TilePath(0, 1000)),
        ("tile/0/999", TilePath(0, 999)),
        ("tile/1/000.p/1", TilePath(1, 0, 1)),
        ("tile/63/x001/000.p/255", TilePath(63, 1000, 255)),
        ("tile/entries/000", TilePath(None, 0)),
        ("tile/entries/x123/456.p/9", TilePath(None, 123_456, 9)),
        ("tile/0/x036/x028/x797/x018/x963/967", TilePath(0, INDEX_MAX)),
    ],
)
def test_the_examples_of_tlog_tiles_are_parsed(path: str, tile: TilePath) -> None:
    """The examples of tlog-tiles, and the ends of each range, are parsed."""
    assert parse_tile_path(path) == tile
    assert format_tile_path(tile.level, tile.index, tile.width) == path


@pytest.mark.parametrize(
    "path",
    [
        *("", "tile", "tile/", "tile/0", "tile/0/", "/tile/0/000", "tile/0/000/", "tile//000", "tile/0/../0/000"),
        *("tile/0/000\x00", "tile/0/000?x"),
        # levels
        *("tile/00/000", "tile/01/000", "tile/64/000", "tile/-1/000", "tile/+1/000", "tile/ 1/000", "tile/data/000", "tile/Entries/000"),
        "tile/\u0661/000",
        # indexes
        *("tile/0/0", "tile/0/00", "tile/0/0000", "tile/0/x000", "tile/0/x000/001", "tile/0/x000/x001/001", "tile/0/001/002"),
        *("tile/0/X001/002", "tile/0/x001x002/003", "tile/0/x001//003", "tile/0/x001", "tile/0/x036/x028/x797/x018/x963/968"),
        *("tile/0/x001/x000/x000/x000/x000/x000/000", "tile/0/000\n", "tile/0/\u0661\u0662\u0663", "tile/0/" + "x999/" * 100_000 + "999"),
        # widths
        *("tile/0/000.p", "tile/0/000.p/", "tile/0/000.p/0", "tile/0/000.p/01", "tile/0/000.p/256", "tile/0/000.p/1000"),
        *("tile/0/000.p/1/2", "tile/0/000.P/1", "tile/0/000p/1", "tile/0/000.p/1\n", "tile/0/000.p/\u0661"),
    ],
)
def test_what_is_no_path(path: str) -> None:
    """Any other text, including another spelling of a tile, is no path."""
    assert parse_tile_path(path) is None


@given(tiles)
def test_a_path_is_parsed_as_rendered(tile: TilePath) -> None:
    """Parsing the path of a tile returns the tile."""
    assert parse_tile_path(format_tile_path(tile.level, tile.index, tile.width)) == tile


@given(st.text(max_size=80) | st.from_regex(r"tile/(entries|[0-9]{1,3})(/x?[0-9]{2,4}){1,8}(\.p/[0-9]{1,4})?\n?"))
def test_any_text_is_a_canonical_path_or_none(path: str) -> None:
    """Any text parses to a tile with that canonical path, or to None."""
    tile = parse_tile_path(path)
    assert tile is None or format_tile_path(tile.level, tile.index, tile.width) == path


@given(tiles, st.data())
def test_a_changed_path_is_another_tile(tile: TilePath, data: st.DataObject) -> None:
    """A changed path names another tile, or none."""
    path = format_tile_path(tile.level, tile.index, tile.width)
    at = data.draw(st.integers(0, len(path)))
    changed = (
        path[:at]
        + data.draw(st.sampled_from(["", "0", "1", "x", "/", ".p/", "000/", "x000/", " "]))
        + path[at + data.draw(st.integers(0, 3)) :]
    )
    assert changed == path or parse_tile_path(changed) != tile
