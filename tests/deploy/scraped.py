"""A worker with one party, as Prometheus scrapes it: its health port, and the names of its series."""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from prometheus_client.parser import text_string_to_metric_families

from deploy.local.ports import free_ports
from notary import cli, keys

PARTY = "O=Bank A"
_NO_METRICS = {"and", "or", "unless", "offset", "bool"}
_NAMES_OF_LABELS = re.compile(r"\b(?:by|without|on|ignoring)\s*\([^)]*\)")


@dataclass(frozen=True)
class Scraped:
    """A worker that is ready, and its folder."""

    directory: Path
    party_key: Path
    """The registered party's key file."""
    url: str
    health: str
    """HOST:PORT."""

    def get(self, path: str) -> str:
        """Returns the health port's answer; an error for any status but 200."""
        with urllib.request.urlopen(f"http://{self.health}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def names(self) -> set[str]:
        """Returns each name that a series of a worker may have."""
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
        return {
            family.name + suffix
            for family in text_string_to_metric_families(self.get("/metrics"))
            for suffix in suffixes.get(family.type, ("",))
        }


def digest(*numbers: int) -> str:
    return sha256(repr(numbers).encode()).hexdigest()


class Bank:
    """A party that consumes states, and tries to consume them again."""

    def __init__(self, worker: Scraped, folder: Path) -> None:
        self._worker, self._folder, self._spent = worker, folder, 0

    def spend(self) -> None:
        """Submit twenty requests; every other one consumes the state of the one before it."""
        self._spent += 1
        file = self._folder / "requests.json"
        requests = [{"inputs": [f"{digest(self._spent, n // 2)}:0"], "content_hash": digest(self._spent, n)} for n in range(20)]
        file.write_text(json.dumps(requests))
        flags = ["--key", str(self._worker.party_key), "--party", PARTY, "--url", self._worker.url]
        done = subprocess.run([sys.executable, "-m", "notary", "submit", str(file), *flags], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@contextmanager
def scraped(directory: Path, init: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Iterator[Scraped]:
    """A notary, on an embedded log unless `init` names another, and its worker, which ends with the with block."""
    assert cli.main(["init", str(directory), "--name", "O=Scraped", "--origin", "notary.example/scraped", *init]) == 0
    # Before the worker starts: it may take seconds to notice a party that is added later.
    party_key, public = directory / "bank.pem", directory / "bank.pub"
    public.write_bytes(
        keys.create(party_key).public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    assert cli.main(["party", "add", PARTY, "--public-key", str(public), "--config", str(directory / "notary.toml")]) == 0
    url, health = (f"127.0.0.1:{port}" for port in free_ports(2))
    command = [sys.executable, "-m", "notary", "serve", "--config", str(directory / "notary.toml"), "--name", "worker-0", "--listen", url]
    own = {"NOTARY_HTTP_HEALTH_LISTEN": health, **(environment or {})}
    with (directory / "worker.err").open("wb") as errors:
        worker = subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert worker.stdout is not None
        assert b"ready at" in worker.stdout.readline(), (directory / "worker.err").read_text()
        yield Scraped(directory, party_key, f"http://{url}", health)
    finally:
        worker.terminate()
        worker.communicate()


def names_in(expression: str) -> set[str]:
    """Returns the metrics of a PromQL expression: words that are no functions, labels, durations or keywords."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", re.sub(r'"[^"]*"', "", expression))
    words = re.findall(r"\b[a-z_][a-z0-9_]*\b(?!\s*\()", _NAMES_OF_LABELS.sub("", bare))
    return set(words) - _NO_METRICS
