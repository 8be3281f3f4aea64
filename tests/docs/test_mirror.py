"""Tests that the tests mirror the code and the code the tests, and that names of tests state a behaviour.

`tests/<package>/…/test_<module>.py` tests `<package>/…/<module>.py`, and `test_<module>_<subject>.py` one subject of it. A module without
such a file is listed here with the folder whose tests run it.
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
PACKAGES = ("ordering", "payload", "joiner", "notary", "loadtest", "spark_join", "deploy")
DECLARATIONS = {"__init__", "__main__", "errors", "exit_codes", "settings"}
"""The modules that only declare or start something: the tests of the modules that use them are enough."""
RUN_BY = {
    "ordering": ("tests/ordering", "local_reader memory pieces store salvage"),
    "payload": ("tests/payload", "request strict_json"),
    "joiner": ("tests/joiner", "ready share"),
    "notary": ("tests/notary/http", "keyring open_log readiness self_check version wire worker"),
    "notary/acceptor": ("tests/notary/acceptor", "messages"),
    "notary/archive": ("tests/notary/archive", "compared"),
    "notary/cli": ("tests/notary/cli", "failover owner_commands parquet replay snapshot staged"),
    "notary/client": ("tests/notary/client", "answers request_file signer tls transport"),
    "notary/http": ("tests/notary/http", "call health lifecycle machine openapi problems query writing"),
    "notary/index": ("tests/notary/index", "rocks rows tiles"),
    "notary/salvage": ("tests/notary/salvage", "forest indexes past statements"),
    "notary/snapshots": ("tests/notary/snapshots", "make manifest"),
    "notary/tracing": ("tests/notary", "spans"),
    "notary/tree": ("tests/notary/tree", "hashing proofs tiles view"),
    "loadtest": ("tests/loadtest", "locustfile"),
    "loadtest/bench": ("tests/loadtest/bench", "figure report sampler stage_map"),
    "loadtest/bench/figures": ("tests/loadtest/bench", "end_to_end"),
    "loadtest/openloop": ("tests/loadtest/openloop", "run"),
    "loadtest/peers": ("tests/loadtest/peers", "contest etcd http_adapter postgresql servers single_topic"),
    "loadtest/rig": ("tests/loadtest", "connections signing"),
    "spark_join": ("tests/spark", "arguments identity state"),
    "spark_join/engine": ("tests/spark", "columns"),
    "spark_join/exports": ("tests/spark", "compare"),
    "spark_join/log": ("tests/spark", "client sending"),
    "spark_join/report": ("tests/spark", "plots"),
    "deploy": ("tests/deploy", "namespace"),
    "deploy/centres": ("tests/deploy", "centres device forward"),
    "deploy/local": ("tests/deploy", "cluster commands golang health jars java ports process runtime state tether"),
    "deploy/manifests": ("tests/deploy", "render schemas tools"),
    "deploy/pki": ("tests/deploy", "authority"),
    "deploy/render": ("tests/deploy", "kafka sites tree units worker"),
}
"""The modules without a test file of their own: by folder the folder whose tests run them. This list may only shrink."""
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


def _has_own_tests(module: Path) -> bool:
    """Returns whether a test file in the mirrored place has the module's name, or begins with it; for flat packages, in any folder."""
    package, *folders = module.relative_to(ROOT).parent.parts
    place = ROOT.joinpath("tests", "spark" if package == "spark_join" else package, *folders)
    files = place.glob("test_*.py")
    if package in ("spark_join", "loadtest"):
        files = ROOT.joinpath("tests", "spark" if package == "spark_join" else package).rglob("test_*.py")
    return any(f"{file.stem}_".startswith(f"test_{module.stem}_") for file in files)


def test_the_code_mirrors_the_tests() -> None:
    """Every module has a test file of its own, or is listed here with the tests that run it."""
    listed = {f"{folder}/{name}.py" for folder, (_, names) in RUN_BY.items() for name in names.split()}
    modules = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py") if file.stem not in DECLARATIONS]
    alone = {str(file.relative_to(ROOT)) for file in modules if not _has_own_tests(file)}
    assert not alone - listed, f"add a test file for {sorted(alone - listed)}, named by the module"
    assert not listed - alone, f"{sorted(listed - alone)} have a test file now, or are gone: remove them from RUN_BY"
    assert [tests for tests, _ in RUN_BY.values() if not any((ROOT / tests).rglob("test_*.py"))] == []


def test_names_state_a_behaviour() -> None:
    """The name of every test has at least three words."""
    short = [
        f"{file.relative_to(ROOT)}: test_{name}"
        for file in _files()
        for name in _NAMED.findall(file.read_text())
        if len(name.split("_")) < WORDS_MIN
    ]
    assert short == [], "name the behaviour, as the docstring does"
