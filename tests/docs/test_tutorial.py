"""Tests `docs/tutorial.md`: runs its commands, block after block, in one shell, and compares their output with the page."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.ports import PORT_END, PORT_MIN, hold

ROOT = Path(__file__).parents[2]
BLOCK_S_MAX = 150.0
FOLDER = "cluster"

_SECTION = re.compile(r"^## (.*)\n", re.MULTILINE)
_BLOCK = re.compile(r"^```sh\n(?P<commands>.*?)^```\n(?:```\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, list[tuple[str, list[str]]]]:
    """Returns the blocks of commands in each section, each with its lines of output."""
    _, *parts = _SECTION.split((ROOT / "docs" / "tutorial.md").read_text())
    return {
        title: [(found["commands"], (found["output"] or "").splitlines()) for found in _BLOCK.finditer(text)]
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def three_ports() -> str:
    """Returns the first digits of three free ports, whose last digits are 1, 2 and 3."""
    return str(next(first for first in range(PORT_MIN // 10, PORT_END // 10) if all(hold(first * 10 + last) for last in (1, 2, 3))))


class Shell:
    """A shell in a folder of its own, to which blocks of the page are typed."""

    def __init__(self, folder: Path) -> None:
        self._ports = three_ports()
        self._output = folder / "output"
        self._blocks = 0
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NOTARY_LOG")}
        environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "NO_PROXY": "*"}
        with self._output.open("wb") as out:
            self._process = subprocess.Popen(
                ["bash"], cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True
            )

    def type(self, commands: str, expected: list[str]) -> None:
        """Run a block to its end. Fails unless its last command succeeds and every expected line comes, in any order."""
        assert self._process.stdin is not None
        self._blocks += 1
        before = self._output.stat().st_size
        # Without stdin, so that no command reads the next block.
        typed = f"{{\n{self._here(commands)}}} < /dev/null\nprintf '\\nblock {self._blocks}: %s\\n' $?\n"
        self._process.stdin.write(typed.encode())
        self._process.stdin.flush()
        patterns = [re.compile(".*".join(map(re.escape, self._here(line).strip().split("...")))) for line in expected]
        deadline_s = time.monotonic() + BLOCK_S_MAX
        while True:
            lines = self._output.read_bytes()[before:].decode(errors="replace").splitlines()
            ended = [line for line in lines if line.startswith(f"block {self._blocks}: ")]
            missing = [pattern.pattern for pattern in patterns if not any(pattern.match(line.strip()) for line in lines)]
            failed = ended not in ([], [f"block {self._blocks}: 0"])
            if failed or (ended and not missing) or time.monotonic() > deadline_s:
                break
            time.sleep(0.05)
        assert not failed, f"the last command of\n{commands}\nfailed\n" + "\n".join(lines)
        assert ended, f"no end of\n{commands}\n" + "\n".join(lines)
        assert not missing, f"of\n{commands}\nthese lines are missing: {missing}\n" + "\n".join(lines)

    def end(self) -> None:
        """End the shell, the processes that it started, and its brokers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        down = [sys.executable, "-P", "-m", "deploy.local", "down", "--dir", str(self._output.parent / FOLDER)]
        if (self._output.parent / FOLDER).exists():
            subprocess.run(down, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})

    def _here(self, text: str) -> str:
        """Returns a text of the page with the ports, folders and programs of the test."""
        text = re.sub(r"(-m deploy\.local \w+)", rf"\1 --dir {FOLDER}", text.replace(":818", f":{self._ports}"))
        return text.replace("make demo\n", "notary demo\n").replace(". .venv/bin/activate\n", "")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A new shell; everything that it started has ended with the test."""
    made = Shell(tmp_path)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.seconds
@pytest.mark.timeout(400)
def test_the_embedded_walk_prints_the_page(shell: Shell) -> None:
    """The demo and the walk on an embedded log print the lines of the page."""
    for title in ("The demo", "One worker on an embedded log"):
        for commands, expected in sections()[title]:
            shell.type(commands, expected)


@pytest.mark.nightly
@pytest.mark.kafka
@pytest.mark.timeout(900)
def test_the_walk_on_brokers_prints_the_page(shell: Shell, tmp_path: Path) -> None:
    """The walk on three brokers, which follows the one on an embedded log, prints the lines of the page and leaves no file."""
    _, first, second = sections().values()
    for commands, expected in [*first, *second]:
        shell.type(commands, expected)
    assert {file.name for file in tmp_path.iterdir()} == {"output"}


PAGES = sorted(str(file.relative_to(ROOT)) for pattern in ("*.md", "docs/**/*.md", "deploy/*/README.md") for file in ROOT.glob(pattern))


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Returns (language, text) of each block of code on a page."""
    found = re.findall(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [(language, block) for _, language, block in found]


@pytest.mark.parametrize("page", PAGES)
def test_pasted_into_any_shell(page: str) -> None:
    """No block of commands has a comment or an unquoted URL with `?`: zsh would not run these as bash does."""
    for language, block in blocks_of(page):
        if language == "sh":
            assert not re.search(r"(^|\s)#", block, re.MULTILINE), block
            assert not re.search(r"""(?<!["'\w])https?://[^\s"']*\?""", block), block


def test_blocks_of_deploy_have_a_language() -> None:
    """Each block of the pages in `deploy/` has a language, so that the test of the shell's blocks reads all commands."""
    languages = {page: [language for language, _ in blocks_of(page)] for page in PAGES if page.startswith("deploy/")}
    assert len(languages) == 4
    assert [page for page, used in languages.items() if not set(used) <= {"sh", "yaml"} or "sh" not in used] == []
