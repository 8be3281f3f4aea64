"""Tests the manifests on a real API server: it accepts them twice, an upgrade changes the right objects, and wrong changes are rejected.

Only `make manifests-live` collects these: the server is built here first, which takes many minutes of two cores.
"""

import copy
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local import CannotRun
from deploy.manifests import KUBERNETES, OVERLAYS, Kubernetes, Manifest, Tools, build_kubernetes, name_of
from loadtest.peers import etcd
from tests.deploy.api_server import OPERATOR, ApiServer, serving
from tests.deploy.test_manifests import changed_copy, pods

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(5400)]


@dataclass
class Installed:
    """An overlay that was applied once."""

    overlay: str
    server: ApiServer

    @property
    def folder(self) -> Path:
        """The overlay in the repository."""
        return KUBERNETES / self.overlay


@pytest.fixture(scope="session")
def programs() -> Kubernetes:
    """The programs of Kubernetes, built the first time."""
    return build_kubernetes()


@pytest.fixture(scope="module", params=OVERLAYS)
def installed(request: pytest.FixtureRequest, tools: Tools, programs: Kubernetes) -> Iterator[Installed]:
    """Each overlay on a server of its own, because both use the namespace `notary`."""
    with serving(programs, etcd.build().server, tools.crds) as server:
        found = Installed(request.param, server)
        server.apply("-k", found.folder)
        yield found


def differences(former: Any, present: Any, at: str = "") -> dict[str, tuple[Any, Any]]:
    """Returns the paths at which two values differ, with both."""
    if isinstance(former, dict) and isinstance(present, dict):
        pairs = [(key, former.get(key), present.get(key)) for key in sorted(former | present)]
    elif isinstance(former, list) and isinstance(present, list) and len(former) == len(present):
        pairs = [(str(place), *both) for place, both in enumerate(zip(former, present, strict=True))]
    else:
        return {} if former == present else {at: (former, present)}
    return {path: both for key, one, other in pairs for path, both in differences(one, other, f"{at}.{key}".lstrip(".")).items()}


def wanted(manifest: Manifest) -> Manifest:
    """Returns an object without the fields that the server itself maintains."""
    kept = copy.deepcopy(manifest)
    kept.pop("status", None)
    for name in ("resourceVersion", "managedFields", "generation"):
        kept["metadata"].pop(name, None)
    return kept


def versions(objects: dict[str, Manifest]) -> dict[str, str]:
    """Returns the version of each object, which changes with every write to it."""
    return {name: each["metadata"]["resourceVersion"] for name, each in objects.items()}


def test_the_server_has_all_objects(installed: Installed) -> None:
    """Each field of the manifests is on the server with the same value: nothing was dropped or replaced by a default."""
    rendered = [each for each in yaml.safe_load_all(installed.server.kubectl("kustomize", installed.folder)) if each]
    stored = installed.server.stored("-k", installed.folder)
    assert set(stored) == {name_of(each) for each in rendered}
    lost = {name_of(each): _lost(each, stored[name_of(each)]) for each in rendered}
    assert {name: paths for name, paths in lost.items() if paths} == {}


def _lost(ours: Any, theirs: Any) -> list[str]:
    """Returns the paths of our values that are missing in theirs. The server adds fields, and writes quantities in another form."""
    found = []
    for path, (one, other) in differences(ours, theirs).items():
        same_quantity = ".resources." in path and str(one) == str(other)
        if one is not None and not (isinstance(one, dict) and not one) and not same_quantity:
            found.append(f"{path}: {one!r}, and there {other!r}")
    return found


def test_a_second_time_changes_nothing(installed: Installed) -> None:
    """A second apply writes no object, so no pod restarts; and `kubectl diff` is empty."""
    server, folder = installed.server, installed.folder
    first = server.stored("-k", folder)
    server.apply("-k", folder)
    second = server.stored("-k", folder)
    assert {name: wanted(each) for name, each in second.items()} == {name: wanted(each) for name, each in first.items()}
    # Admission adds a finalizer to a new claim in our name; the second apply removes our name, and the finalizer stays.
    assert {name for name in first if versions(first)[name] != versions(second)[name]} <= {"PersistentVolumeClaim/archive"}
    server.apply("-k", folder)
    assert versions(server.stored("-k", folder)) == versions(second)
    server.kubectl("diff", "--server-side", "--field-manager", OPERATOR, "-k", folder)  # it fails if there is a difference


def test_an_upgrade_changes_what_it_should(installed: Installed, tmp_path: Path) -> None:
    """An upgrade (new image, one more worker, other settings, another party) changes four objects in the right places, and adds one."""
    before = installed.server.stored("-n", "notary", OUR_KINDS)
    new = changed_copy(
        installed.overlay,
        tmp_path,
        (f"{installed.overlay}/kustomization.yaml", "newTag: 0.1.0", "newTag: 0.2.0"),
        ("base/settings/notary.toml", "[index]\n", "[index]\ncache_bytes = 536870912\n"),
        ("base/settings/parties.json", "{}", "{ }"),
        *_one_worker_more(installed.overlay),
    )
    try:
        installed.server.apply("-k", new)
        after = installed.server.stored("-n", "notary", OUR_KINDS)
        (settings,) = set(after) - set(before)
        assert re.fullmatch("ConfigMap/settings-[0-9a-z]+", settings)
        assert set(before) - set(after) == set(), "an apply deletes nothing"
        changes = {name: differences(wanted(former), wanted(after[name])) for name, former in before.items()}
        for name, paths in changes.items():
            for path, (former, present) in paths.items():
                print(f"{installed.overlay}: {name} {path}: {str(former)[:80]} -> {str(present)[:80]}")
        template = "spec.jobTemplate.spec.template.spec"
        assert {name: set(paths) for name, paths in changes.items() if paths} == {
            "StatefulSet/worker": {"spec.replicas", "spec.template.spec.containers.0.image", "spec.template.spec.volumes.0.configMap.name"},
            "CronJob/archive": {f"{template}.containers.0.image", f"{template}.volumes.0.configMap.name"},
            "CronJob/verify": {f"{template}.containers.0.image"},
            "ConfigMap/parties": {"data.parties.json"},
        } | (
            {"CronJob/snapshots": {f"{template}.containers.0.image", f"{template}.volumes.0.configMap.name"}}
            if "snapshots" in _jobs(installed.overlay)
            else {}
        )
        assert changes["StatefulSet/worker"]["spec.replicas"][1] == before["StatefulSet/worker"]["spec"]["replicas"] + 1
    finally:
        installed.server.apply("-k", installed.folder)
        installed.server.kubectl("delete", "-n", "notary", settings.lower())


OUR_KINDS = ",".join([
    "statefulsets,cronjobs,services,configmaps,persistentvolumeclaims,poddisruptionbudgets,networkpolicies,ingresses,serviceaccounts",
    "kafkas.kafka.strimzi.io,kafkanodepools,kafkatopics,kafkausers,certificates,issuers,podmonitors,prometheusrules",
])  # fmt: skip
"""All kinds of objects in our namespace, except pods."""


def _jobs(overlay: str) -> tuple[str, ...]:
    """Returns the names of an overlay's CronJobs."""
    return ("archive", "verify", "snapshots") if overlay == "three-zones" else ("archive", "verify")


def _one_worker_more(overlay: str) -> list[tuple[str, str, str]]:
    if overlay == "one-zone":
        return [
            (
                "one-zone/kustomization.yaml",
                "path: /spec/replicas, value: 1}\n      - {op: remove",
                "path: /spec/replicas, value: 2}\n      - {op: remove",
            )
        ]
    return [("base/workers.yaml", "replicas: 3", "replicas: 4")]


# -- wrong changes are rejected


def test_a_change_of_somebody_else_is_a_conflict(installed: Installed) -> None:
    """After `kubectl scale` that command owns the number: the next apply reports a conflict and changes nothing unless forced."""
    scale = ("-n", "notary", "scale", "statefulset", "worker", "--replicas")
    former = installed.server.stored("-k", installed.folder)["StatefulSet/worker"]["spec"]["replicas"]
    installed.server.kubectl(*scale, "7")
    try:
        with pytest.raises(CannotRun, match=r"conflict with \"kubectl\".*\n?.*\.spec\.replicas"):
            installed.server.apply("-k", installed.folder)
    finally:
        installed.server.apply("-k", installed.folder, "--force-conflicts")
    assert installed.server.stored("-k", installed.folder)["StatefulSet/worker"]["spec"]["replicas"] == former


# -- pods


def as_pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Returns a pod for each template, as a controller would create it; a claim becomes one that need not exist yet."""
    made = {}
    for name, template in pods(manifests).items():
        pod = copy.deepcopy(template)
        pod |= {"apiVersion": "v1", "kind": "Pod"}
        pod["metadata"] |= {"name": name.lower().replace("/", "-"), "namespace": "notary"}
        if name == "StatefulSet/worker":
            pod["spec"]["volumes"].append({"name": "index", "persistentVolumeClaim": {"claimName": "index-worker-0"}})
        # A controller, which does not run yet, would create the account `default`.
        pod["spec"].setdefault("serviceAccountName", "worker")
        made[name] = pod
    return made


CAPABLE = {"drop": ["ALL"], "add": ["NET_ADMIN"]}


def test_pod_security_admits_ours_and_no_other(installed: Installed, tmp_path: Path) -> None:
    """A pod of each template is admitted; with one field changed it is rejected, and the message names the field."""
    made = as_pods(list(installed.server.stored("-k", installed.folder).values()))
    assert set(made) == {"StatefulSet/worker", *(f"CronJob/{job}" for job in _jobs(installed.overlay))}
    file = tmp_path / "pod.json"
    for pod in made.values():
        file.write_text(json.dumps(pod))
        assert "created (server dry run)" in installed.server.kubectl("create", "--dry-run=server", "--validate=strict", "-f", file)
        bad: list[tuple[Callable[[Manifest], object], str]] = [
            (lambda pod: pod["spec"]["securityContext"].pop("seccompProfile"), "seccompProfile"),
            (lambda pod: pod["spec"]["containers"][0].update(securityContext={"privileged": True}), "privileged"),
            (lambda pod: pod["spec"]["containers"][0]["securityContext"].update(capabilities=CAPABLE), "unrestricted capabilities"),
            (lambda pod: pod["spec"]["volumes"].append({"name": "node", "hostPath": {"path": "/"}}), "hostPath"),
        ]
        for change, said in bad:
            wrong = copy.deepcopy(pod)
            change(wrong)
            file.write_text(json.dumps(wrong))
            with pytest.raises(CannotRun, match=f'violates PodSecurity "restricted:latest".*{said}'):
                installed.server.kubectl("create", "--dry-run=server", "-f", file)


def test_controllers_make_the_pods(installed: Installed) -> None:
    """The set creates all its workers at once, each with a claim of its own, and a job creates its pod."""
    # The last test here: controllers write to the objects.
    server = installed.server
    replicas = server.stored("-k", installed.folder)["StatefulSet/worker"]["spec"]["replicas"]
    server.start_controllers()
    jobs = _jobs(installed.overlay)
    for job in jobs:
        server.kubectl("-n", "notary", "create", "job", f"{job}-by-hand", f"--from=cronjob/{job}")
    expected = {f"worker-{at}" for at in range(replicas)} | {f"{job}-by-hand" for job in jobs}
    deadline = time.monotonic() + 120
    while True:
        made = {name.partition("/")[2]: pod for name, pod in server.stored("-n", "notary", "pods").items()}
        named = {re.sub(r"-by-hand-.*", "-by-hand", name) for name in made}
        claims = set(server.stored("-n", "notary", "persistentvolumeclaims"))
        budget = server.stored("-n", "notary", "poddisruptionbudgets")["PodDisruptionBudget/worker"].get("status", {})
        if named == expected and budget.get("expectedPods") == replicas:
            break
        assert time.monotonic() < deadline, (sorted(made), budget, server.kubectl("-n", "notary", "get", "events"))
        time.sleep(0.5)
    assert claims == {f"PersistentVolumeClaim/index-worker-{at}" for at in range(replicas)} | {"PersistentVolumeClaim/archive"}
    for at in range(replicas):
        mounted = {volume["name"]: volume for volume in made[f"worker-{at}"]["spec"]["volumes"]}
        assert mounted["index"]["persistentVolumeClaim"]["claimName"] == f"index-worker-{at}"
        assert made[f"worker-{at}"]["spec"]["serviceAccountName"] == "worker"
