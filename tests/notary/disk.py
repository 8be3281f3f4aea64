"""A watched disk with failures and power losses, for tests of code that writes step by step.

    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, file)
        disk.fail_after(3, Killed)
        ...
    for content in disk.after_power_losses(): ...

Writes, renames, links and removals also happen on the real disk, but nothing is synced there.
"""

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class Killed(BaseException):
    """A kill, as by SIGKILL: no cleanup code handles it."""


class Disk:
    """The disk operations of a process, step by step, and the contents that a power loss at any moment may leave.

    Until a directory is synced, each change of its names may be lost or kept separately; a file's content is kept once it is synced.
    """

    def __init__(self, patch: pytest.MonkeyPatch, *files: Path) -> None:
        self._before = {str(file): file.read_bytes() for file in files}
        self._steps: list[tuple[str, ...]] = []
        self._contents: list[bytes] = []
        self._known = set(self._before)
        self._left: int | None = None
        self._problem: type[BaseException] = Killed
        for name in ("fsync", "replace", "rename", "link", "unlink"):
            patch.setattr(os, name, functools.partial(getattr(self, f"_{name}"), getattr(os, name)))

    def fail_after(self, steps: int, problem: type[BaseException]) -> None:
        """Raise this error once, at the step after that many."""
        self._left, self._problem = steps, problem

    def _count(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._left = None
                raise self._problem(28, "No space left on device")

    def _fsync(self, real: Callable[[int], None], descriptor: int) -> None:
        self._count()
        file = os.readlink(f"/proc/self/fd/{descriptor}")
        if Path(file).is_dir():
            self._steps.append(("sync", file))
            return
        if file not in self._known:
            self._steps.append(("create", file))
            self._known.add(file)
        self._contents.append(Path(file).read_bytes())
        self._steps.append(("write", file, str(len(self._contents) - 1)))

    def _replace(self, real: Callable[..., None], source: Path, target: Path) -> None:
        self._count()
        real(source, target)
        self._steps.append(("move", str(source), str(target)))
        self._known.discard(str(source))

    def _rename(self, real: Callable[..., None], source: Path, target: Path) -> None:
        self._replace(real, source, target)

    def _link(self, real: Callable[..., None], source: Path, target: Path) -> None:
        self._count()
        real(source, target)
        self._steps.append(("link", str(source), str(target)))
        self._known.add(str(target))

    def _unlink(self, real: Callable[..., None], file: Path) -> None:
        self._count()
        real(file)
        self._steps.append(("unlink", str(file)))
        self._known.discard(str(file))

    def is_settled(self) -> bool:
        """True if a power loss now would change nothing."""
        named = [at for at, (what, *_) in enumerate(self._steps) if what in ("create", "move", "link", "unlink")]
        return all(("sync", str(Path(self._steps[at][1]).parent)) in self._steps[at:] for at in named)

    def after_power_losses(self) -> Iterator[dict[str, bytes]]:
        """Yields every content that the disk may have after a power loss, once."""
        seen = set()
        for cut in range(len(self._steps) + 1):
            contents = list(self._before.values())  # the content of each file that ever existed, by its number
            synced: dict[str, int | None] = {name: number for number, name in enumerate(self._before)}
            now = dict(synced)
            pending: list[dict[str, int | None]] = []
            for what, file, *more in self._steps[:cut]:
                match what:
                    case "create":
                        contents.append(b"")
                        pending.append({file: len(contents) - 1})
                    case "write":
                        number = now[file]
                        assert number is not None
                        contents[number] = self._contents[int(more[0])]
                    case "move":
                        pending.append({file: None, more[0]: now[file]})
                    case "link":
                        pending.append({more[0]: now[file]})
                    case "unlink":
                        pending.append({file: None})
                    case "sync":
                        in_it = [change for change in pending if all(str(Path(name).parent) == file for name in change)]
                        pending = [change for change in pending if change not in in_it]
                        for change in in_it:
                            synced.update(change)
                if what in ("create", "move", "link", "unlink"):
                    now.update(pending[-1])
            for kept in itertools.product((False, True), repeat=len(pending)):
                names = dict(synced)
                for change in itertools.compress(pending, kept):
                    names.update(change)
                content = {name: contents[number] for name, number in names.items() if number is not None}
                if (key := frozenset(content.items())) not in seen:
                    seen.add(key)
                    yield content
