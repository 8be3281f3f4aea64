"""The OpenAPI document, compared with a live worker: schemathesis makes calls that keep to it, and calls that do not."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.notary.party import NOTARY, Bank, spend, transaction_id
from tests.notary.process import ROOT, NotaryDirectory, NotaryProcess

SEED = 1
SHORT_WAITS = {"HTTP_WAIT_MS_MAX": 100}
"""A valid call may ask for the longest wait, which would take a minute."""


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize(
    ("phases", "examples"),
    [("coverage,fuzzing", 5), pytest.param("coverage,fuzzing,stateful", 1_000, marks=pytest.mark.nightly)],
    ids=["short", "long"],
)
def test_every_operation_does_what_the_document_says(
    phases: str, examples: int, notary_process: Callable[..., NotaryProcess], own_directory: NotaryDirectory, bank: Bank, tmp_path: Path
) -> None:
    """Valid calls are accepted, others rejected, and every answer is one of the document's; no bug is logged."""
    worker = notary_process(own_directory.config, settings=SHORT_WAITS)
    request = spend()
    httpx.post(worker.url + "/v1/submissions", content=bank.body(request), headers={"content-type": "application/json"}).raise_for_status()
    known = {
        "party": bank.name,
        "key_pem": bank.private_pem.decode(),
        "notary": NOTARY,
        "id": transaction_id(request),
        "ref": request["inputs"][0],
    }
    hooks = {"PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.notary.http.generated", "GENERATED_KNOWN": json.dumps(known)}
    tool = [str(Path(sys.executable).with_name("schemathesis")), "--no-color", "run", f"{worker.url}/openapi.json"]
    options = f"--phases {phases} --seed {SEED} --max-examples {examples} --no-shrink --continue-on-failure --request-timeout 60"
    done = subprocess.run([*tool, *options.split()], cwd=tmp_path, env=os.environ | hooks, capture_output=True, text=True, check=False)
    assert done.returncode == 0, "\n".join([line[:1_000] for line in (done.stdout + done.stderr).splitlines()])
    assert "Tested: 12" in done.stdout, done.stdout
    assert worker.stop() == 0
