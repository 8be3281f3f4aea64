"""Puts a file or folder that was fetched, unpacked or built into its place in the cache."""

from pathlib import Path


def move_into_place(made: Path, place: Path) -> None:
    """Rename `made`, complete and in the same file system, to `place`. A reader finds nothing there, or all of it.

    Nothing is synced: the cache can be made again. A crash of the process leaves `made` under its temporary name, which no reader uses. A
    crash of the machine may lose the rename, and then `made` is fetched or built again; if files in `place` are damaged, remove it. A file
    at `place` is replaced, and an empty folder too. Raises `OSError`.
    """
    made.replace(place)
