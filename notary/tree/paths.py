"""Tile paths: `tile/<L>/<N>[.p/<W>]`, and `tile/entries/<N>[.p/<W>]` for the leaves (C2SP tlog-tiles).

    tile/0/x001/x234/067        level 0, index 1234067, full
    tile/1/000.p/17             level 1, index 0, the first 17 hashes
    tile/entries/000.p/17       the leaves of tile/0/000.p/17

Tiles are served and stored under these paths. The index is cut into groups of three digits, all but the last with an `x` before it, so that
no file has the name of a folder.
"""

import re
from typing import Final

import msgspec

from notary.tree.tiles import TILE_HEIGHT, TILE_WIDTH

LEVEL_MAX: Final = 63
"""The highest level that tlog-tiles allows; no tree reaches it."""
INDEX_MAX: Final = (1 << 63 - TILE_HEIGHT) - 1
"""The last tile of level 0 that a tree of less than 2^63 leaves can have."""

_path = re.compile(
    r"tile/(?:entries|(?P<level>0|[1-9][0-9]?))"
    r"/(?P<index>(?:(?!x000/)x[0-9]{3}/(?:x[0-9]{3}/)*)?[0-9]{3})"
    r"(?:\.p/(?P<width>[1-9][0-9]{0,2}))?"
).fullmatch
_PATH_CHARACTERS_MAX: Final = 64


class TilePath(msgspec.Struct, frozen=True):
    """The first `width` hashes of a tile, TILE_WIDTH for a full one; when `level` is None, the first `width` leaves."""

    level: int | None
    index: int
    width: int = TILE_WIDTH


def parse_tile_path(path: str) -> TilePath | None:
    """Parses a path without leading slash or URL prefix. Returns None unless it is the canonical path of a tile."""
    if len(path) > _PATH_CHARACTERS_MAX or (found := _path(path)) is None:
        return None
    level = None if found["level"] is None else int(found["level"])
    index = int(found["index"].replace("x", "").replace("/", ""))
    width = TILE_WIDTH if found["width"] is None else int(found["width"])
    if (level is not None and level > LEVEL_MAX) or index > INDEX_MAX or (found["width"] is not None and width >= TILE_WIDTH):
        return None
    return TilePath(level, index, width)


def format_tile_path(level: int | None, index: int, width: int = TILE_WIDTH) -> str:
    """Returns the path of a tile; `level` None for the bundle of its leaves."""
    assert level is None or 0 <= level <= LEVEL_MAX, f"no tile has level {level}"
    assert 0 <= index <= INDEX_MAX, f"no tile has index {index}"
    assert 0 < width <= TILE_WIDTH, f"no tile has width {width}"
    groups = [f"{index % 1000:03d}"]
    while index := index // 1000:
        groups.append(f"x{index % 1000:03d}")
    partial = f".p/{width}" if width < TILE_WIDTH else ""
    return f"tile/{'entries' if level is None else level}/{'/'.join(reversed(groups))}{partial}"
