"""A worker with one party, as Prometheus scrapes it: its health port, and the names of its series."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from deploy.local.ports import free_ports
from tests.clients.http import PAUSED
from tests.notary.party import Bank, fresh_state, spend
from tests.notary.process import NotaryDirectory, NotaryProcess

_NO_METRICS = {"and", "or", "unless", "offset", "bool"}
_NAMES_OF_LABELS = re.compile(r"\b(?:by|without|on|ignoring)\s*\([^)]*\)")


@dataclass(frozen=True)
class Scraped:
    """A worker that is ready."""

    url: str
    health: str
    """HOST:PORT."""
    bank: Bank = field(default_factory=Bank)
    """Its party."""

    def get(self, path: str) -> str:
        """Returns the health port's answer. Raises an error for another status than 200, unless the worker's process was just paused."""
        url = f"http://{self.health}{path}"
        while (answer := httpx.get(url, timeout=60, trust_env=False)).status_code == 503 and PAUSED in answer.content:
            pass
        answer.raise_for_status()
        return answer.text

    def names(self) -> set[str]:
        """Returns each name that a series of a worker may have."""
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
        return {
            family.name + suffix
            for family in text_string_to_metric_families(self.get("/metrics"))
            for suffix in suffixes.get(family.type, ("",))
        }

    def decide(self) -> None:
        """Submit twenty requests; every other one consumes the state of the one before it."""
        states = [fresh_state() for _ in range(10)]
        body = self.bank.body(*[spend(state) for state in states for _ in range(2)])
        headers = {"content-type": "application/json"}
        status = 503
        while status in {202, 503}:
            answer = httpx.post(f"{self.url}/v1/submissions", content=body, headers=headers, timeout=60, trust_env=False)
            status = answer.status_code
        assert answer.status_code == 200, answer.text


@contextmanager
def scraped(directory: Path, init: Sequence[str] = (), settings: Mapping[str, str] | None = None) -> Iterator[Scraped]:
    """A notary, on an embedded log unless `init` names another, and its worker, which ends with the with block."""
    made, bank = NotaryDirectory.create(directory, options=init), Bank()
    made.register(bank)  # before the worker starts: it may take seconds to notice a party that is added later
    url, health = (f"127.0.0.1:{port}" for port in free_ports(2))
    with NotaryProcess.start(made.config, "worker-0", url, settings={"HTTP_HEALTH_LISTEN": health, **(settings or {})}) as worker:
        worker.ends_tls = "LOG_CA_FILE" in (settings or {})
        yield Scraped(worker.url, health, bank)
        assert worker.stop() == 0


def names_in(expression: str) -> set[str]:
    """Returns the metrics of a PromQL expression: words that are no functions, labels, durations or keywords."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", re.sub(r'"[^"]*"', "", expression))
    words = re.findall(r"\b[a-z_][a-z0-9_]*\b(?!\s*\()", _NAMES_OF_LABELS.sub("", bare))
    return set(words) - _NO_METRICS
