"""Tests, from the source files, that every Python that the product or its users start leaves the working directory out of its path."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("ordering", "payload", "joiner", "notary", "spark_join", "deploy", "loadtest")
SAFE = ("-P", "-I")
ELSEWHERE = {
    # Spark starts this one, with the variable given here.
    "spark_join/engine/session.py": 'os.environ.setdefault("PYSPARK_PYTHON", sys.executable)',
}
_COMMAND = re.compile(r"python3?[\"']?,? +[\"']?((?:-[A-Za-z]+[\"']?,? +[\"']?)*)-[mc][\"']?,? +[\"']?([\w.]+)?")
_DEVELOPERS = re.compile(r"(pip|pytest|piptools|tests(\..*)?)").fullmatch
"""Modules that developers run from a checkout."""


def unsafe_starts(source: str) -> Iterator[int]:
    """Yields the lines of a Python file that name an interpreter without -P or -I after it, or that let `multiprocessing` start one."""
    tree = ast.parse(source)
    followed: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            for element, following in zip(node.elts, node.elts[1:], strict=False):
                option = str(following.value) if isinstance(following, ast.Constant) else ""
                if option in SAFE:
                    followed.add(element)
                elif option.startswith("-") and isinstance(element, ast.Constant) and re.fullmatch(r"(.*/)?python3?", str(element.value)):
                    yield element.lineno
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            if any(name.partition(".")[0] in ("multiprocessing", "runpy") for name in names):
                yield node.lineno
        if isinstance(node, ast.Attribute | ast.Name) and "ProcessPoolExecutor" in (getattr(node, "attr", ""), getattr(node, "id", "")):
            yield node.lineno
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable" and node not in followed:
            yield node.lineno


def unsafe_commands(text: str) -> Iterator[str]:
    """Yields the commands in a text that run a module, or a string, without -P or -I."""
    for found in _COMMAND.finditer(text):
        if not set(re.findall(r"-\w", found[1])) & set(SAFE) and not _DEVELOPERS(found[2] or ""):
            yield found[0]


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (ROOT / package).rglob("*.py")


def texts() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile"))
    yield from (ROOT / "docs").rglob("*.md")
    for package in PACKAGES:
        yield from (file for file in (ROOT / package).rglob("*") if file.is_file() and "__pycache__" not in file.parts and _is_text(file))


def _is_text(file: Path) -> bool:
    return file.suffix in (".py", ".md", ".sh", ".yaml", ".toml", ".service", ".j2", "") and file.stat().st_size < 1 << 20


@pytest.mark.seconds
def test_every_child_is_started_without_the_working_directory() -> None:
    """Product code that starts a Python passes -P (or -I) first: otherwise the child would import files from its working directory."""
    unsafe = []
    for file in sources():
        name, source = str(file.relative_to(ROOT)), file.read_text()
        if name in ELSEWHERE:
            assert ELSEWHERE[name] in source
            source = source.replace(ELSEWHERE[name], "")
        unsafe += [f"{name}:{line}" for line in unsafe_starts(source)]
    assert not unsafe, "put -P behind the interpreter"


def test_every_documented_command_leaves_it_out_too() -> None:
    """Commands in documents, units, manifests, the image and the Makefile pass -P or -I too."""
    found = {
        str(file.relative_to(ROOT)): commands for file in texts() if (commands := [*unsafe_commands(file.read_text(errors="replace"))])
    }
    assert not found, "write `python -P -m`"


@pytest.mark.parametrize(
    "source",
    [
        'run([sys.executable, "-m", "notary"])',
        "run([sys.executable, *words])",
        'command = ["env", "A=1", sys.executable, "-c", "pass"]',
        'Popen(["/usr/bin/python3", "-m", "notary"])',
        "import multiprocessing",
        "from multiprocessing.pool import Pool",
        "concurrent.futures.ProcessPoolExecutor()",
    ],
)
def test_a_start_that_forgets_it_is_found(source: str) -> None:
    """The first test finds each way of starting Python without the option."""
    assert [*unsafe_starts(source)] == [1]
    assert not [
        *unsafe_starts('run([sys.executable, "-P", "-m", "notary"]); run(["python3", "-I", "x.py"]); run(["env", sys.executable, "-P"])')
    ]


@pytest.mark.parametrize(
    "command", ["exec python -m spark_join archive", "`python3 -B -m notary`", '["python", "-m", "notary"]', 'bin/python -c "x"']
)
def test_a_command_that_forgets_it_is_found(command: str) -> None:
    """The second test finds such commands too."""
    assert len([*unsafe_commands(command)]) == 1
    assert not [*unsafe_commands("python -P -m notary; python3 -B -I -m x; .venv/bin/python -m pip; python -m tests.scopes")]
