"""Tests that clients work which others' generators make from the live OpenAPI document: each is generated, compiled, and run.

`clients/` has one program for each generator. All do the same: submit two signed requests of docs/formats.md, the second of which asks for
a state that the first consumes, and read decisions, a receipt, a state, the notary and a problem, member by member by their types.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import httpx
import pytest

from notary.verify import verify_receipt
from tests.notary.hostile_proxy import hostile_proxy
from tests.notary.party import NOTARY, Bank, fresh_state, spend, transaction_id
from tests.notary.process import NotaryDirectory, NotaryProcess

CLIENTS: Final = Path(__file__).parent / "clients"
OPENAPI_GENERATOR: Final = "org.openapitools:openapi-generator-cli:7.17.0"

Build: TypeAlias = Callable[[Path, Path], list[str]]
"""(the document, an empty folder) -> the command of a client made there; the notary's URL is its last argument."""


def run(*command: str | Path, folder: Path) -> None:
    """Run a tool in a folder. Fails with its output, and if there is no such tool."""
    if shutil.which(command[0]) is None:
        pytest.fail(f"this test needs {command[0]} on the PATH (CONTRIBUTING.md)", pytrace=False)
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-8_000:]}"


def generate(document: Path, folder: Path, *options: str) -> None:
    """Run openapi-generator, fetched by Maven."""
    run("mvn", "-B", "-q", "dependency:copy", f"-Dartifact={OPENAPI_GENERATOR}", f"-DoutputDirectory={folder}", folder=folder)
    (jar,) = folder.glob("openapi-generator-cli-*.jar")
    run("java", "-jar", jar, "generate", "-i", document, *options, folder=folder)
    jar.unlink()


def go_build(folder: Path) -> list[str]:
    shutil.copy(CLIENTS / "given.go", folder)
    run("go", "build", "-mod=readonly", "-buildvcs=false", "-o", "client", ".", folder=folder)
    return [str(folder / "client")]


def oapi_codegen(document: Path, folder: Path) -> list[str]:
    shutil.copytree(CLIENTS / "oapi_codegen", folder, dirs_exist_ok=True)
    run("go", "tool", "oapi-codegen", "-config", "config.yaml", document, folder=folder)
    return go_build(folder)


def go(document: Path, folder: Path) -> list[str]:
    # Without this option the generated code rejects members that a newer worker may add.
    options = "withGoMod=false,disallowAdditionalPropertiesIfNotPresent=false"
    generate(document, folder, "-g", "go", "-o", "openapi", f"--additional-properties={options}")
    shutil.copytree(CLIENTS / "go", folder, dirs_exist_ok=True)
    return go_build(folder)


def java(document: Path, folder: Path) -> list[str]:
    generate(document, folder, "-g", "java", "--library", "native", "-o", ".")
    run("mvn", "-B", "-q", "dependency:copy-dependencies", "-DoutputDirectory=libraries", folder=folder)
    sources = sorted((folder / "src" / "main").rglob("*.java"))
    path = f"{folder / 'libraries'}/*{os.pathsep}{folder / 'classes'}"
    run("javac", "-encoding", "UTF-8", "-cp", path, "-d", "classes", *sources, CLIENTS / "java" / "Read.java", folder=folder)
    return ["java", "-cp", path, "Read"]


def typescript(folder: Path) -> None:
    """Fetch the compiler and the libraries that `package-lock.json` pins."""
    shutil.copytree(CLIENTS / "typescript", folder, dirs_exist_ok=True)
    run("npm", "ci", "--no-audit", "--no-fund", folder=folder)


def typescript_fetch(document: Path, folder: Path) -> list[str]:
    typescript(folder)
    generate(document, folder, "-g", "typescript-fetch", "-o", "client")
    run("npx", "--no-install", "tsc", "--project", "fetch.json", folder=folder)
    return ["node", str(folder / "built" / "typescript_fetch.js")]


def openapi_typescript(document: Path, folder: Path) -> list[str]:
    typescript(folder)
    run("npx", "--no-install", "openapi-typescript", document, "-o", "schema.d.ts", folder=folder)
    run("npx", "--no-install", "tsc", "--project", "types.json", folder=folder)
    return ["node", str(folder / "built" / "openapi_typescript.js")]


def python(document: Path, folder: Path) -> list[str]:
    generate(document, folder, "-g", "python", "-o", ".")
    shutil.copy(CLIENTS / "python" / "read.py", folder)
    return [sys.executable, str(folder / "read.py")]


def add_members(decisions: list[dict[str, Any]]) -> None:
    """Add members to the decisions of an answer, as a newer worker may."""
    for decision in filter(None, decisions):
        decision["added"] = 1
        for conflict in decision["conflicts"]:
            conflict["added"] = 1


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(oapi_codegen, marks=pytest.mark.go),
        *[pytest.param(build, marks=pytest.mark.nightly) for build in (go, java, typescript_fetch, openapi_typescript, python)],
    ],
    ids=lambda build: build.__name__,
)
def test_a_generated_client_reads_what_the_notary_answers(build: Build, tmp_path: Path) -> None:
    """It sends optional members or leaves them out, and reads the members of every answer as the worker sent them; it skips new ones."""
    bank = Bank()
    directory = NotaryDirectory.create(tmp_path / "notary")
    directory.register(bank)
    with NotaryProcess.start(directory.config) as worker:
        document = tmp_path / "openapi.json"
        document.write_bytes(httpx.get(worker.url + "/openapi.json", trust_env=False, timeout=60).content)
        folder = tmp_path / "client"
        folder.mkdir()
        command = build(document, folder)

        first = spend(fresh_state(), fresh_state(), references=[fresh_state()], time_window={"from": 1_760_000_000_000, "until": None})
        second = spend(first["inputs"][0])
        submission = bank.submission(first, second)
        given = {
            **{name: submission[name] for name in ("party", "signature")},
            **{name: first[name] for name in ("inputs", "references", "content_hash")},
            "wrong_signature": Bank().submission(first, second)["signature"],
            "from": first["time_window"]["from"],
            "second_content_hash": second["content_hash"],
            "transaction": transaction_id(second),
        }
        with hostile_proxy(worker.url, add_members) as newer:
            newer.described = {"added": 1}
            done = subprocess.run([*command, newer.url], input=json.dumps(given), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)

        with httpx.Client(base_url=worker.url, trust_env=False, timeout=60) as plain:
            decisions = plain.post("/v1/submissions", json=submission).json()["decisions"]
            transaction = plain.get(f"/v1/transactions/{given['transaction']}").json()
            receipt = plain.get(f"/v1/transactions/{given['transaction']}/receipt").text
            state = plain.get(f"/v1/states/{given['inputs'][0]}").json()
            notary = plain.get("/v1/notary").json()
        assert worker.stop() == 0
    assert [decision["reason"] for decision in decisions] == [None, "input-conflict"]
    assert found == {
        "undecided": 2,
        "decisions": decisions,
        "transaction": transaction,
        "receipt": receipt,
        "state": state,
        "notary": {"name": NOTARY, "key": notary["verifier_key"], "requests": 1_000},
        "problem": {"status": 403, "type": "/problems/bad-signature"},
    }
    for decision in found["decisions"]:
        verify_receipt(decision["receipt"], decision, notary["verifier_key"])
