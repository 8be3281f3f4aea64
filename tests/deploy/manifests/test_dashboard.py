"""Tests the dashboard: it matches its table, its metrics exist, and a real Prometheus that scrapes a real worker answers every query."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.local.ports import free_ports
from deploy.manifests import DASHBOARD, PANELS, Manifest, Tools, dashboard, rules_of
from tests.deploy.scraped import Scraped, names_in

pytestmark = [pytest.mark.go, pytest.mark.timeout(600)]


def test_the_file_is_what_the_table_says() -> None:
    """`python -m deploy.manifests dashboard` would change nothing."""
    is_same = DASHBOARD.read_text() == dashboard()
    assert is_same, "run `python -P -m deploy.manifests dashboard` and commit the file"


def test_panels_do_not_overlap() -> None:
    """Each cell of Grafana's grid has at most one panel, and each panel an id of its own."""
    panels = json.loads(dashboard())["panels"]
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y) for place in places for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_metric_exists(worker: Scraped) -> None:
    """Each query uses metrics that a worker has."""
    known = worker.names()
    for panel in PANELS:
        for query, _ in panel.queries:
            assert names_in(query), query
            assert names_in(query) <= known, query


def test_every_metric_is_shown(worker: Scraped) -> None:
    """Every metric of a worker is on the dashboard, except the times at which counters began."""
    shown = {name for panel in PANELS for query, _ in panel.queries for name in names_in(query)}
    missing = {name for name in worker.names() if not name.endswith("_created")} - shown
    # A histogram is shown by its buckets.
    hidden = {name for name in missing if not name.endswith(("_count", "_sum"))}
    assert not hidden, "no panel of deploy/manifests/dashboard.py shows these"


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, path: str, **parameters: str) -> Any:
        """Returns the answer of its API; raises an error if there is none."""
        answer = httpx.get(f"{self._url}{path}", params=parameters, timeout=60, trust_env=False)
        return answer.raise_for_status().json()["data"]

    def values(self, query: str) -> list[float]:
        """Returns the present result of a query."""
        return [float(each["value"][1]) for each in self.ask("/api/v1/query", query=query)["result"]]


@contextmanager
def prometheus(tools: Tools, folder: Path, target: str, rules: str) -> Iterator[Prometheus]:
    """A Prometheus on loopback that scrapes one target each second, and ends with the with block."""
    (port,) = free_ports(1)
    (folder / "rules.yml").write_text(rules)
    labels = {"namespace": "notary", "pod": "worker-0"}
    scrape = {"job_name": "notary/workers", "static_configs": [{"targets": [target], "labels": labels}]}
    (folder / "prometheus.yml").write_text(
        yaml.safe_dump({"global": {"scrape_interval": "1s"}, "rule_files": ["rules.yml"], "scrape_configs": [scrape]})
    )
    with (folder / "prometheus.log").open("wb") as log:
        running = subprocess.Popen(
            [
                tools.prometheus,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        asked = Prometheus(f"http://127.0.0.1:{port}")
        while True:
            assert running.poll() is None, (folder / "prometheus.log").read_text()
            try:
                if asked.values("up == 1"):
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        yield asked
    finally:
        running.terminate()
        running.wait()


def test_prometheus_answers_every_query(tools: Tools, worker: Scraped, rendered: dict[str, list[Manifest]], tmp_path: Path) -> None:
    """Each panel has data while a worker decides, and each alert's expression is evaluated without an error."""
    queries = [(query, panel.rare) for panel in PANELS for query, _ in panel.queries]
    with prometheus(tools, tmp_path, worker.health, rules_of(rendered["three-zones"])) as asked:
        waiting = [query for query, rare in queries if not rare]
        for _ in range(300):  # rates over a minute need two scrapes with decisions between them
            worker.decide()
            time.sleep(0.2)
            waiting = [query for query in waiting if not any(map(isfinite, asked.values(query)))]
            if not waiting:
                break
        assert waiting == []
        for query, rare in queries:
            if rare:
                asked.values(query)
        (outcomes,) = (panel for panel in PANELS if panel.title == "Decisions by outcome")
        assert len([rate for rate in asked.values(outcomes.queries[0][0]) if rate > 0]) == 2
        rules = [rule for group in asked.ask("/api/v1/rules")["groups"] for rule in group["rules"]]
        assert {rule["name"] for rule in rules} >= {"NotaryNotReady", "NotarySlowAnswers"}
        while any(rule["health"] == "unknown" for rule in rules):
            time.sleep(0.5)
            rules = [rule for group in asked.ask("/api/v1/rules")["groups"] for rule in group["rules"]]
        assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
        assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_probes_ask_what_a_worker_answers(worker: Scraped, rendered: dict[str, list[Manifest]]) -> None:
    """A ready worker answers each probe's path, and that of the workers' PodMonitor, with 200 on its health port."""
    (workers,) = (each for each in rendered["three-zones"] if each["kind"] == "StatefulSet")
    monitors = {each["metadata"]["name"]: each for each in rendered["three-zones"] if each["kind"] == "PodMonitor"}
    monitor = monitors["workers"]
    (container,) = workers["spec"]["template"]["spec"]["containers"]
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for asked in [*probes.values(), endpoint]:
        assert asked["port"] == "health"
        assert worker.get(asked["path"])
    assert monitor["spec"]["selector"] == workers["spec"]["selector"]
