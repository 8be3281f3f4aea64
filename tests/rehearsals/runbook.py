"""The pages of `docs/runbook.md` about disasters: their parts, the commands in them, and the messages that they quote."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNBOOK = ROOT / "docs" / "runbook.md"
PARTS = ("You see", "It means", "You lose at most", "It takes", "Do", "It is over")
"""The parts of a page about a disaster, in this order."""
LOSS = "**You lose at most**"

_SECTION = re.compile(r"^## (?P<title>[^\n]+)\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^ *```sh\n(?P<lines>.*?)^ *```$", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Page:
    """A section of the runbook."""

    title: str
    text: str

    @property
    def anchor(self) -> str:
        """The anchor of its heading."""
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")

    @cached_property
    def blocks(self) -> list[list[str]]:
        """The commands of each block `sh`, a line each; a backslash continues a line. A comment is no command."""
        blocks = []
        for found in _BLOCK.finditer(self.text):
            lines = re.sub(r" *\\\n *", " ", found["lines"]).splitlines()
            blocks.append([line.strip() for line in lines if line.strip() and not line.strip().startswith("#")])
        return blocks

    def quotes(self, text: str) -> bool:
        """Returns whether the page quotes this part of a message, in code style; the page may break the line anywhere."""
        quoted = [" ".join(found.split()) for found in _QUOTED.findall(_BLOCK.sub("", self.text))]
        return any(text in each for each in quoted)


def pages(text: str) -> dict[str, Page]:
    """Returns all sections of the runbook by their titles."""
    return {found["title"]: Page(found["title"], found["text"]) for found in _SECTION.finditer(text)}


def disasters(text: str) -> Sequence[Page]:
    """Returns the pages that promise a largest loss: each of them is rehearsed."""
    return [page for page in pages(text).values() if LOSS in page.text]
