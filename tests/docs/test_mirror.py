"""Tests that the tests mirror the code, and that their names state a behaviour.

`tests/<package>/…/test_<module>.py` tests `<package>/…/<module>.py`, and `test_<module>_<subject>.py` one subject of it.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPLETE_SYSTEMS = {
    "chaos", "checkers", "docs", "hostile", "imports", "kafka", "model", "mutants", "outsiders", "properties", "rehearsals", "scenarios",
    "scopes", "semantics", "simulation",
}  # fmt: skip
"""The folders that test many packages at once, or no package. A new package is no reason to extend this set."""
ELSEWHERE = {
    "deploy/manifests/test_alerts.py": "deploy/kubernetes/base",  # the alerts are a manifest
    "deploy/manifests/test_live.py": "deploy/kubernetes",
    "deploy/manifests/test_users.py": "deploy/kubernetes",
    "deploy/test_one_box.py": "deploy/one-box",
    "deploy/test_operations.py": "docs/operations.md",
    "loadtest/bench/test_main.py": "loadtest/bench/__main__.py",
    "loadtest/openloop/test_ledger.py": "loadtest/openloop/checker.py",
    "loadtest/openloop/test_locust.py": "loadtest/locustfile.py",
    "notary/cli/test_main.py": "notary/cli/__init__.py",
    "notary/http/test_document.py": "notary/http/openapi.py",
    "notary/http/test_hostile_bodies.py": "notary/http",
    "notary/http/test_hostile_connections.py": "notary/http",
    "notary/http/test_overload.py": "notary/http",
    "notary/http/test_public_log.py": "notary/http",
}
"""The test files of a package that test none of its modules by itself, and what they test instead. This list may only shrink."""
WORDS_MIN = 3
_NAMED = re.compile(r"^ *(?:async )?def test_(\w+)\(", re.MULTILINE)


def _tested(file: Path) -> bool:
    """Returns whether a module beside the mirrored place, or the package of that place, has the name with which this file's begins."""
    package, *folders = file.relative_to(ROOT / "tests").parent.parts
    # The folder `spark` is not named `spark_join`: the commands of Makefile and pages name it.
    place = ROOT.joinpath("spark_join" if package == "spark" else package, *folders)
    modules = {each.stem for each in place.iterdir() if each.suffix == ".py" or each.is_dir()} | {place.name}
    if package in ("spark", "loadtest"):  # they are flatter than the code
        modules |= {each.stem for each in place.rglob("*") if each.suffix == ".py" or each.is_dir()}
    name = file.stem.removeprefix("test_")
    return any(name == module or name.startswith(f"{module}_") for module in modules)


def _files() -> list[Path]:
    return sorted((ROOT / "tests").rglob("test_*.py"))


def test_files_mirror_the_code() -> None:
    """Every test file of a package begins with the name of a module in the same folder of the code, or its subject is listed here."""
    mirrored = [file for file in _files() if file.relative_to(ROOT / "tests").parts[0] not in COMPLETE_SYSTEMS]
    lost = {str(file.relative_to(ROOT / "tests")) for file in mirrored if not _tested(file)}
    assert lost == ELSEWHERE.keys(), "move or rename the file to match its module"
    assert [subject for subject in ELSEWHERE.values() if not (ROOT / subject).exists()] == []


def test_names_state_a_behaviour() -> None:
    """The name of every test has at least three words."""
    short = [
        f"{file.relative_to(ROOT)}: test_{name}"
        for file in _files()
        for name in _NAMED.findall(file.read_text())
        if len(name.split("_")) < WORDS_MIN
    ]
    assert short == [], "name the behaviour, as the docstring does"
