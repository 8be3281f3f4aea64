"""Tests the Kubernetes manifests: every object fits its schema, the notary's needs are met, and a wrong object is found."""

import argparse
import copy
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.image.__main__ import EXTRAS
from deploy.manifests import KUBERNETES, MIRROR, OVERLAYS, Manifest, Schemas, Tools, __main__, name_of, render
from deploy.manifests.render import documents
from notary.cli import command_named
from notary.config import Config, load
from ordering import topics
from spark_join.arguments import parser as verifier
from tests.notary.process import NotaryDirectory, NotaryProcess

pytestmark = [pytest.mark.go, pytest.mark.timeout(600)]

Rendered = dict[str, list[Manifest]]
overlays = pytest.mark.parametrize("overlay", OVERLAYS)


def of_kind(manifests: list[Manifest], *kinds: str) -> dict[str, Manifest]:
    """Returns the objects of these kinds, by name."""
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] in kinds}


def pods(manifests: list[Manifest]) -> dict[str, dict[str, Any]]:
    """Returns our pod templates, by kind and name."""
    found = {name_of(each): each["spec"]["template"] for each in manifests if each["kind"] in ("StatefulSet", "Deployment", "Job")}
    return found | {name_of(each): each["spec"]["jobTemplate"]["spec"]["template"] for each in manifests if each["kind"] == "CronJob"}


def containers(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from pod["spec"].get("initContainers", [])
    yield from pod["spec"]["containers"]


def worker_container(manifests: list[Manifest]) -> dict[str, Any]:
    (container,) = of_kind(manifests, "StatefulSet")["worker"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


def settings_of(manifests: list[Manifest]) -> dict[str, str]:
    """Returns the files of the ConfigMap with the settings, by name."""
    (settings,) = (each["data"] for name, each in of_kind(manifests, "ConfigMap").items() if name.startswith("settings"))
    return dict(settings)


def worker_config(manifests: list[Manifest], folder: Path) -> Config:
    """Returns a worker's configuration, as `notary serve` would read it in its pod."""
    file = folder / "notary.toml"
    file.write_text(settings_of(manifests)["notary.toml"])
    environment = {each["name"]: each.get("value", "zone-a") for each in worker_container(manifests).get("env", [])}
    return load(file, {"worker.name": "worker-0"}, environment)


def changed_copy(overlay: str, folder: Path, *changes: tuple[str, str, str]) -> Path:
    """Returns an overlay in a copy of all files, with texts replaced in some: file, former, new."""
    shutil.copytree(KUBERNETES, folder / "kubernetes")
    for name, former, new in changes:
        file = folder / "kubernetes" / name
        text = file.read_text()
        assert former in text, (name, former)
        file.write_text(text.replace(former, new))
    return folder / "kubernetes" / overlay


# -- schemas


@overlays
def test_every_kind_that_is_wanted_is_there(rendered: Rendered, overlay: str) -> None:
    """Every expected kind is there: an overlay that rendered nothing would fit every schema."""
    assert {each["kind"] for each in rendered[overlay]} >= {
        "Kafka", "KafkaNodePool", "KafkaTopic", "KafkaUser", "StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy", "CronJob",
        "Certificate", "Ingress", "PodMonitor", "PrometheusRule", "ConfigMap", "Namespace",
    }  # fmt: skip


@pytest.fixture(scope="module")
def mirrored(tools: Tools) -> list[Manifest]:
    """The mirror's site."""
    return render(tools, KUBERNETES / MIRROR)


def test_a_mirror_has_one_process_that_copies_and_no_workers(mirrored: list[Manifest], schemas: Schemas) -> None:
    """The mirror's site fits the schemas. It runs `notary mirror` from the source to its brokers, and nothing that needs a log."""
    manifests = mirrored
    (source,) = documents((KUBERNETES / MIRROR / "source.yaml").read_text())
    assert [problem for manifest in [*manifests, source] for problem in schemas.problems(manifest)] == []
    assert of_kind(manifests, "KafkaTopic") == {}
    assert of_kind(manifests, "StatefulSet")["worker"]["spec"]["replicas"] == 0
    assert all(each["spec"]["suspend"] for each in of_kind(manifests, "CronJob").values())
    mirror = of_kind(manifests, "Deployment")["mirror"]["spec"]
    assert (mirror["replicas"], mirror["strategy"]["type"]) == (1, "Recreate")
    pod = mirror["template"]["spec"]
    (container,) = pod["containers"]
    files = [Path(word) for word in container["command"] if word.startswith("/")]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    secrets = {volume["name"]: volume.get("secret", {}).get("secretName") for volume in pod["volumes"]}
    bootstraps, users = [], []
    for file in files:
        assert mounts[str(file.parent)] == "settings"
        log = tomllib.loads(settings_of(manifests)[file.name])["log"]
        bootstraps.append(log["bootstrap"])
        users.append([secrets[mounts[str(Path(log[name]).parent)]] for name in ("ca_file", "cert_file", "key_file")])
    assert bootstraps == ["log.source.example:9094", "log-kafka-bootstrap:9093"]
    assert users == [["source-ca", "source-user", "source-user"], ["log-cluster-ca-cert", "mirror", "mirror"]]


def test_the_failovers_pod_reaches_both_sites(mirrored: list[Manifest]) -> None:
    """The pod that an operator starts by hand has the mirror's settings for both logs, with the user `failover`."""
    _, pod = documents((KUBERNETES / MIRROR / "failover.yaml").read_text())
    mirror = of_kind(mirrored, "Deployment")["mirror"]["spec"]["template"]
    assert mirror["metadata"]["labels"].items() - pod["metadata"]["labels"].items() == {("app", "mirror")}
    (container,), (of_mirror,) = pod["spec"]["containers"], mirror["spec"]["containers"]
    written = re.findall(r"cat > (\S+) <<'END'\n(.*?)END\n", container["args"][0], re.DOTALL)
    settings = {file: tomllib.loads(text) for file, text in settings_of(mirrored).items() if file.endswith(".toml")}
    pairs = (("source", "source.toml"), ("mirror", "notary.toml"))
    expected = {f"/tmp/{to}.toml": {key: settings[of][key] for key in ("name", "origin", "log")} for to, of in pairs}
    assert {file: tomllib.loads(text) for file, text in written} == expected
    secrets = {each["name"]: each["secret"]["secretName"] for each in pod["spec"]["volumes"] if "secret" in each}
    assert secrets == {"kafka-ca": "log-cluster-ca-cert", "kafka-user": "failover", "source-ca": "source-ca", "source-user": "source-user"}
    assert {each["mountPath"]: each["name"] for each in of_mirror["volumeMounts"] if each["name"] in secrets}.items() <= {
        each["mountPath"]: each["name"] for each in container["volumeMounts"]
    }.items()


def _put(place: Any, path: str, value: Any) -> None:
    *way, last = (int(step) if step.isdigit() else step for step in path.split("/"))
    for step in way:
        place = place[step]
    place[last] = value


@pytest.mark.parametrize(
    ("name", "path", "value", "said"),
    [
        ("StatefulSet/worker", "spec/podManagmentPolicy", "Parallel", "podManagmentPolicy"),
        ("StatefulSet/worker", "spec/template/spec/containers/0/readinessProbe/httpGet/Path", "/readyz", "Path"),
        ("StatefulSet/worker", "spec/replicas", "three", "three"),
        ("StatefulSet/worker", "kind", "StatefulSett", "no kind StatefulSett"),
        ("StatefulSet/worker", "apiVersion", "apps.example/v1", "apps.example/v1"),
        ("NetworkPolicy/to-workers", "spec/ingress/0/form", [], "form"),
        ("Kafka/log", "spec/kafka/rak", {}, "rak"),
        ("Kafka/log", "spec/kafka/listeners/0/authentication/typ", "tls", "typ"),
        ("Kafka/log", "apiVersion", "kafka.strimzi.io/v1beta2", "kafka.strimzi.io/v1beta2"),
        ("Kafka/log", "metadata/lables", {}, "lables"),
        ("KafkaNodePool/broker-a", "spec/storage/volumes/0/kraftMetadata", "own", "own"),
        ("KafkaNodePool/broker-a", "spec/template/pod/affinity/nodeAffinty", {}, "nodeAffinty"),
        ("KafkaTopic/notary.ordering", "spec/partitions", "one", "one"),
        ("KafkaUser/worker", "spec/authorization/acls/0/operations/0", "Reed", "Reed"),
        ("KafkaUser/worker", "spec/authorization/acls/0/operation", "Read", "operation"),
        ("PodMonitor/workers", "spec/podMetricsEndpoints/0/intervall", "5s", "intervall"),
        ("PrometheusRule/notary", "spec/groups/0/rules/0/annotation", {}, "annotation"),
        ("Certificate/clients", "spec/dnsName", ["notary.example"], "dnsName"),
    ],
)
def test_a_wrong_object_is_noticed(rendered: Rendered, schemas: Schemas, name: str, path: str, value: Any, said: str) -> None:
    """A misspelt field, an unknown kind, a version that Strimzi has dropped, and a value of another type are each a problem."""
    (manifest,) = (copy.deepcopy(each) for each in rendered["three-zones"] if name_of(each) == name)
    _put(manifest, path, value)
    problems = schemas.problems(manifest)
    assert any(said in problem for problem in problems), problems


WRONG = (
    ("base/workers.yaml", "podManagementPolicy:", "podManagmentPolicy:"),
    ("base/kafka.yaml", "topologyKey:", "topologyKy:"),
    ("base/ingress.yaml", "kind: Ingress", "kind: Ingres"),
    ("base/alerts.yaml", "expr: notary_hole == 1", "expr: notary_hole == == 1"),
)
"""Lines that are wrong in one way each: the file, the right and the wrong text."""


def test_the_command_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` exits with 1 for wrong lines, and names each: a misspelt field of ours or of Strimzi's, a kind, an expression."""
    monkeypatch.setattr(__main__, "KUBERNETES", changed_copy("", tmp_path, *WRONG))
    assert __main__.main(["check"]) == 1
    shown = capsys.readouterr().err
    assert [wrong for _, _, wrong in WRONG if wrong.rstrip(":").split()[-1] not in shown] == []


def test_check_accepts_the_present_manifests() -> None:
    """`check` exits with 0 for the files as they are: every object of all overlays fits its schema, and promtool reads the rules."""
    assert __main__.main(["check"]) == 0


# -- the log


@overlays
def test_topics_are_as_workers_insist(rendered: Rendered, overlay: str) -> None:
    """The topics have exactly the settings that `ordering.topics` checks."""
    found = of_kind(rendered[overlay], "KafkaTopic")
    replicas = {"one-zone": 1, "three-zones": 3}[overlay]
    wanted = topics._FIXED | {topics._TIMES: topics.APPEND_TIME} | {name: str(least) for name, least in topics._AT_LEAST.items()}
    wanted["min.insync.replicas"] = str(topics._insync_wanted(replicas))
    assert set(found) == set(topics.topic_names("notary"))
    for topic in found.values():
        settings = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in topic["spec"]["config"].items()}
        assert settings == wanted
        assert topic["spec"]["replicas"] == replicas
    assert [found[name]["spec"]["partitions"] for name in topics.topic_names("notary")] == [1, 16]


@overlays
def test_no_setting_that_strimzi_drops(rendered: Rendered, overlay: str) -> None:
    """Brokers keep all records of topics without settings of their own; no setting has a prefix that Strimzi drops silently."""
    dropped = (
        "advertised.", "authorizer.", "broker.", "controller", "host.name", "inter.broker.listener.name", "listener.", "listeners",
        "log.dir", "node.id", "password.", "port", "process.roles", "sasl.", "security.", "servers", "ssl.", "super.user", "zookeeper.",
    )  # fmt: skip
    config = of_kind(rendered[overlay], "Kafka")["log"]["spec"]["kafka"]["config"]
    assert [name for name in config if name.startswith(dropped)] == []
    replicas, in_sync = {"one-zone": (1, 1), "three-zones": (3, 2)}[overlay]
    assert config == {
        **{f"{name}.replication.factor": replicas for name in ("default", "offsets.topic", "transaction.state.log")},
        **dict.fromkeys(("min.insync.replicas", "transaction.state.log.min.isr"), in_sync),
        **{f"{name}.enable": False for name in ("auto.create.topics", "delete.topic", "unclean.leader.election")},
        "log.retention.ms": -1,
    }


def test_one_replica_in_each_zone(rendered: Rendered) -> None:
    """Each zone has one controller and brokers; the brokers' rack is the zone to which their pool is pinned."""
    zones: dict[str, list[str]] = {"controller": [], "broker": []}
    for pool in of_kind(rendered["three-zones"], "KafkaNodePool").values():
        (role,) = pool["spec"]["roles"]
        terms = pool["spec"]["template"]["pod"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ((match,),) = [term["matchExpressions"] for term in terms["nodeSelectorTerms"]]
        assert (match["key"], match["operator"]) == ("topology.kubernetes.io/zone", "In")
        (zone,) = match["values"]
        zones[role].append(zone)
        assert pool["spec"]["replicas"] == 1
    assert sorted(zones["controller"]) == sorted(zones["broker"]) == ["zone-a", "zone-b", "zone-c"]
    assert of_kind(rendered["three-zones"], "Kafka")["log"]["spec"]["kafka"]["rack"]["topologyKey"] == "topology.kubernetes.io/zone"


WRITE, READ = {"Read", "Write", "Describe", "DescribeConfigs"}, {"Read", "Describe"}


def rights_of(manifests: list[Manifest]) -> dict[str, dict[str, set[str]]]:
    """Returns the operations of each user, by topic; those on the cluster under `cluster`."""
    may: dict[str, dict[str, set[str]]] = {}
    for name, user in of_kind(manifests, "KafkaUser").items():
        may[name] = {}
        for acl in user["spec"]["authorization"]["acls"]:
            assert acl.get("type", "allow") == "allow"
            assert acl["resource"] in ({"type": "cluster"}, {**acl["resource"], "type": "topic", "patternType": "literal"})
            may[name].setdefault(acl["resource"].get("name", "cluster"), set()).update(acl["operations"])
    return may


def test_users_of_one_work_may_no_more_than_it_needs(mirrored: list[Manifest]) -> None:
    """A mirror only reads its source, and alters no settings. Only users that are deleted afterwards may do that."""
    by_hand = [each for file in ("mirror/source.yaml", "reassign.yaml") for each in documents((KUBERNETES / file).read_text())]
    ordering, payload = topics.topic_names("notary")
    failing_over, moving = WRITE | {"Create", "AlterConfigs"}, {"Describe", "AlterConfigs"}
    wanted = {
        "mirror": {ordering: WRITE, payload: WRITE | {"Alter"}},
        "failover": {ordering: failing_over, payload: failing_over},
        "mirror-source": {ordering: READ | {"DescribeConfigs"}, payload: READ | {"DescribeConfigs"}},
        "reassign": {"cluster": {"Alter", "AlterConfigs"}, ordering: moving, payload: moving},
    }
    assert rights_of([*mirrored, *by_hand]).items() >= wanted.items()


@overlays
def test_users_may_no_more_than_they_need(rendered: Rendered, overlay: str) -> None:
    """Workers read and write, readers read, and no user deletes or alters topics or the cluster."""
    assert all(user["spec"]["quotas"]["consumerByteRate"] > 0 for user in of_kind(rendered[overlay], "KafkaUser").values())
    ordering, payload = topics.topic_names("notary")
    assert rights_of(rendered[overlay]) == {
        "worker": {ordering: WRITE, payload: WRITE},
        "owner": {ordering: WRITE, payload: WRITE},
        "archive": {ordering: READ, payload: READ},
        "auditor": {ordering: READ, payload: READ},
    }
    kafka = of_kind(rendered[overlay], "Kafka")["log"]["spec"]["kafka"]
    assert kafka["authorization"] == {"type": "simple"}
    assert all(listener["tls"] and listener["authentication"]["type"] == "tls" for listener in kafka["listeners"])


# -- workers


@overlays
def test_a_worker_takes_its_configuration(rendered: Rendered, tmp_path: Path, overlay: str) -> None:
    """The file and the pod's variables are valid settings, and every file that they name is in a volume of the pod."""
    config = worker_config(rendered[overlay], tmp_path)
    assert (config.log.kind, config.log.security_protocol, config.sender.data_centre) == ("kafka", "SSL", "zone-a")
    container = worker_container(rendered[overlay])
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    files = [config.key_file, config.key_history_file, config.parties_file, config.log.ca_file, config.log.cert_file, config.log.key_file]
    files += [config.http.tls_cert_file, config.http.tls_key_file]
    for file in [*files, container["command"][container["command"].index("--config") + 1]]:
        assert str(Path(file).parent) in mounts
    assert config.index.directory in mounts
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert (config.http.listen, config.http.health_listen) == (f"0.0.0.0:{ports['https']}", f"0.0.0.0:{ports['health']}")
    (listener,) = of_kind(rendered[overlay], "Kafka")["log"]["spec"]["kafka"]["listeners"]
    assert config.log.bootstrap == f"log-kafka-bootstrap:{listener['port']}"
    assert config.http.connections_per_address_max == 0, "all clients have the addresses of the Ingress controller's pods"


def test_workers_with_the_component_make_snapshots(rendered: Rendered, tmp_path: Path) -> None:
    """The component `snapshots` sets the place and the period: its nightly job fails if there is no snapshot."""
    config = worker_config(rendered["three-zones"], tmp_path)
    assert config.snapshots.url
    assert config.snapshots.every_s == 86_400


@overlays
def test_a_job_that_hangs_is_ended(rendered: Rendered, with_segments: list[Manifest], overlay: str) -> None:
    """Each job has a deadline, since no other one starts while it runs (`Forbid`)."""
    for job in of_kind([*rendered[overlay], *with_segments], "CronJob").values():
        assert job["spec"]["concurrencyPolicy"] == "Forbid"
        assert 3600 < job["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"] < 86_400


@overlays
def test_a_worker_speaks_tls_by_the_names_of_its_services(rendered: Rendered, overlay: str) -> None:
    """The certificate has every name by which the cluster reaches a worker, and is mounted so that the pod sees a renewal."""
    certificates = of_kind(rendered[overlay], "Certificate")
    names = set(certificates["worker"]["spec"]["dnsNames"])
    for service in of_kind(rendered[overlay], "Service").values():
        of_each = "*." if service["spec"].get("clusterIP") == "None" else ""
        name = of_each + service["metadata"]["name"]
        assert {name, f"{name}.notary.svc", f"{name}.notary.svc.cluster.local"} <= names
        assert [port["targetPort"] for port in service["spec"]["ports"]] == ["https"]
    template = of_kind(rendered[overlay], "StatefulSet")["worker"]["spec"]["template"]["spec"]
    (tls,) = (volume["secret"] for volume in template["volumes"] if volume["name"] == "tls")
    assert (tls["secretName"], tls["defaultMode"]) == (certificates["worker"]["spec"]["secretName"], 0o440)
    (mount,) = (each for each in worker_container(rendered[overlay])["volumeMounts"] if each["name"] == "tls")
    assert "subPath" not in mount, "the kubelet never changes such a file again"
    issuers = of_kind(rendered[overlay], "Issuer")
    assert issuers["workers"]["spec"]["ca"]["secretName"] == certificates["authority"]["spec"]["secretName"]
    assert certificates["authority"]["spec"]["isCA"] is True
    assert all("server auth" in certificates[name]["spec"]["usages"] for name in ("worker", "clients"))
    ingress, clients = of_kind(rendered[overlay], "Ingress")["clients"]["spec"], certificates["clients"]["spec"]
    assert ingress["tls"] == [{"hosts": clients["dnsNames"], "secretName": clients["secretName"]}]
    (path,) = (path for rule in ingress["rules"] for path in rule["http"]["paths"])
    assert path["backend"]["service"] == {"name": "worker", "port": {"name": "https"}}


@overlays
def test_a_worker_that_stalls_is_not_killed_at_once(rendered: Rendered, overlay: str) -> None:
    """It opens its index before it answers, for up to 5 min, and is restarted only after it has not answered for a minute."""
    probes = {name: probe for name, probe in worker_container(rendered[overlay]).items() if name.endswith("Probe")}
    assert {probe["httpGet"]["port"] for probe in probes.values()} == {"health"}
    seconds = {name: probe["periodSeconds"] * probe["failureThreshold"] for name, probe in probes.items()}
    assert seconds == {"startupProbe": 300, "livenessProbe": 60, "readinessProbe": 4}


@overlays
def test_a_stopping_worker_has_time(rendered: Rendered, tmp_path: Path, overlay: str) -> None:
    """Kubernetes kills a worker only after preStop and the longest time that answering its admitted requests may take."""
    spec = of_kind(rendered[overlay], "StatefulSet")["worker"]["spec"]["template"]["spec"]
    before = worker_container(rendered[overlay])["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = worker_config(rendered[overlay], tmp_path).service.drain_s_max
    assert spec["terminationGracePeriodSeconds"] >= before + drain + 10


@overlays
def test_workers_outlive_their_pods(rendered: Rendered, overlay: str) -> None:
    """Workers start together, keep their volumes, and at most one is evicted at a time, a broken one always. Brokers keep theirs too."""
    pools = of_kind(rendered[overlay], "KafkaNodePool").values()
    assert all(volume["deleteClaim"] is False for pool in pools for volume in pool["spec"]["storage"]["volumes"])
    worker = of_kind(rendered[overlay], "StatefulSet")["worker"]["spec"]
    assert worker["podManagementPolicy"] == "Parallel"
    assert worker["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    budget = of_kind(rendered[overlay], "PodDisruptionBudget")["worker"]["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert budget["selector"] == worker["selector"]
    services = of_kind(rendered[overlay], "Service")
    of_each = services[worker["serviceName"]]["spec"]
    assert (of_each["clusterIP"], of_each["publishNotReadyAddresses"]) == ("None", True), "one that is not ready answers look-ups"
    for service in services.values():
        assert service["spec"]["selector"] == worker["selector"]["matchLabels"] == {"app": "worker"}


def test_workers_are_spread_by_zone(rendered: Rendered) -> None:
    """Three workers run one in each zone, even while a zone is down."""
    worker = of_kind(rendered["three-zones"], "StatefulSet")["worker"]["spec"]
    spread = worker["template"]["spec"]["topologySpreadConstraints"][0]
    assert worker["replicas"] == spread["minDomains"] == 3
    assert (spread["topologyKey"], spread["maxSkew"], spread["whenUnsatisfiable"]) == ("topology.kubernetes.io/zone", 1, "DoNotSchedule")
    assert spread["labelSelector"] == worker["selector"]


@overlays
def test_pods_are_restricted(rendered: Rendered, other_pods: list[Manifest], overlay: str) -> None:
    """Pods meet Pod Security's `restricted`, with a read-only root, no token, and no variables of Services."""
    assert of_kind(rendered[overlay], "Namespace")["notary"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for name, pod in pods([*other_pods, *rendered[overlay]]).items():
        spec = pod["spec"]
        assert spec["enableServiceLinks"] is False, name
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in containers(pod):
            context = container["securityContext"]
            assert context == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}, name
            assert "memory" in container["resources"]["limits"], name
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            claims = of_kind(rendered[overlay], "StatefulSet")["worker"]["spec"]["volumeClaimTemplates"]
            assert mounts <= {volume["name"] for volume in spec["volumes"]} | {claim["metadata"]["name"] for claim in claims}, name


@overlays
def test_the_pods_that_strimzi_makes_are_restricted(rendered: Rendered, overlay: str) -> None:
    """Kafka's containers meet `restricted` by themselves, and no template takes the group of the volumes from the brokers.

    Strimzi takes each top-level field of a template from the node pool, else from the Kafka object (its proposal 120), never a mixture.
    Unless the template of pods has a securityContext, Strimzi makes one with the group that its image runs as.
    """
    spec = of_kind(rendered[overlay], "Kafka")["log"]["spec"]
    pools = of_kind(rendered[overlay], "KafkaNodePool").values()
    wanted = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    templates = [spec["kafka"]["template"] | pool["spec"].get("template", {}) for pool in pools]
    for template in (*templates, spec["entityOperator"]["template"]):
        assert template["pod"]["enableServiceLinks"] is False
        assert "securityContext" not in template["pod"]
        made = {name: value["securityContext"] for name, value in template.items() if name.endswith("Container")}
        assert made.keys() in ({"kafkaContainer", "initContainer"}, {"topicOperatorContainer", "userOperatorContainer"})
        assert all(context == wanted for context in made.values()), made
    operators = spec["entityOperator"]["template"]
    assert operators["topicOperatorContainer"]["env"] == [{"name": "STRIMZI_USE_FINALIZERS", "value": "false"}], "no topic can be deleted"


@overlays
def test_no_service_makes_a_variable_of_the_notary(rendered: Rendered, overlay: str) -> None:
    """No Service is named `notary`: the variables that Kubernetes makes of it would look like settings."""
    assert [name for name in of_kind(rendered[overlay], "Service") if name.startswith("notary")] == []


@overlays
def test_secrets_are_mounted_as_workers_accept_them(rendered: Rendered, other_pods: list[Manifest], overlay: str) -> None:
    """Files of a Secret are root's, and readable by the pod's group alone, which a worker accepts (`tests/notary/test_access.py`)."""
    for name, pod in pods([*other_pods, *rendered[overlay]]).items():
        secrets = [volume[kind] for volume in pod["spec"]["volumes"] for kind in ("secret", "projected") if kind in volume]
        assert all(secret["defaultMode"] == 0o440 for secret in secrets), name
        assert pod["spec"]["securityContext"]["fsGroup"] == pod["spec"]["securityContext"]["runAsGroup"], name


@pytest.mark.parametrize(
    ("file", "user"),
    [("owner.yaml", "owner"), ("owner-work.yaml", "owner"), ("reassign.yaml", "reassign"), ("mirror/failover.yaml", "failover")],
)
def test_pods_by_hand_are_restricted_too(rendered: Rendered, mirrored: list[Manifest], schemas: Schemas, file: str, user: str) -> None:
    """The pods that an operator starts by hand fit their schema, are restricted like the others, and connect as their user."""
    made = documents((KUBERNETES / file).read_text())
    assert [problem for each in made for problem in schemas.problems(each)] == []
    assert {each["metadata"]["namespace"] for each in made} == {"notary"}
    (pod,) = of_kind(made, "Pod").values()
    job = next(each for name, each in pods(rendered["three-zones"]).items() if name == "CronJob/archive")["spec"]
    for setting in ("automountServiceAccountToken", "enableServiceLinks", "restartPolicy"):
        assert pod["spec"][setting] == job[setting], setting
    assert pod["spec"]["securityContext"] | {"fsGroupChangePolicy": "OnRootMismatch"} == job["securityContext"]
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"] == job["containers"][0]["securityContext"]
    assert pod["metadata"]["labels"]["kafka-client"] == "true"
    secrets = [each["secret"] for each in pod["spec"]["volumes"] if "secret" in each]
    assert {each["secretName"] for each in secrets if not each.get("optional")} == {user, "log-cluster-ca-cert"}
    assert {each["defaultMode"] for each in secrets} == {0o440}
    assert {each["emptyDir"]["medium"] for each in pod["spec"]["volumes"] if "emptyDir" in each} == {"Memory"}, "keys are on no disk"
    assert user in of_kind([*rendered["three-zones"], *mirrored, *made], "KafkaUser")
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["spec"]["volumes"]}


@pytest.mark.parametrize("file", ["owner.yaml", "owner-work.yaml"])
def test_the_owners_pods_connect_like_workers(rendered: Rendered, tmp_path: Path, file: str) -> None:
    """The `[log]` settings that the owner's pods write are those of a worker."""
    (pod,) = of_kind(documents((KUBERNETES / file).read_text()), "Pod").values()
    written = pod["spec"]["containers"][0]["args"][0].partition("END'\n")[2].partition("END\n")[0]
    log = worker_config(rendered["three-zones"], tmp_path).log
    assert tomllib.loads(written) == {key: getattr(log, key) for key in ("security_protocol", "ca_file", "cert_file", "key_file")}


def test_the_owner_has_a_volume_to_work_on(with_segments: list[Manifest]) -> None:
    """The pod for long commands has a claim of its own, reads an index or the archive, and may reach the object stores."""
    (claim, pod) = documents((KUBERNETES / "owner-work.yaml").read_text())
    claims = {
        each["name"]: each["persistentVolumeClaim"]["claimName"] for each in pod["spec"]["volumes"] if "persistentVolumeClaim" in each
    }
    assert claims == {"source": "index-worker-0", "work": claim["metadata"]["name"]}
    mounts = {each["name"]: each for each in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["source"]["readOnly"] is True
    assert not mounts["work"].get("readOnly")
    (index,) = of_kind(with_segments, "StatefulSet")["worker"]["spec"]["volumeClaimTemplates"]
    assert claims["source"] == f"{index['metadata']['name']}-worker-0"
    labels = pod["metadata"]["labels"]
    for policy in ("to-brokers", "to-snapshots", "to-segments"):
        wanted = of_kind(with_segments, "NetworkPolicy")[policy]["spec"]["podSelector"]["matchLabels"]
        assert wanted.items() <= labels.items(), policy
    assert pod["spec"]["containers"][0]["envFrom"] == worker_container(with_segments)["envFrom"]
    # Jobs of the archive are scheduled beside pods with this label only, and this pod is in the zone of an index.
    assert "uses-archive" not in labels


def readme() -> str:
    """Returns the text of README.md, which an installed package lacks: `make test-wheel` imports this file too."""
    return (KUBERNETES / "README.md").read_text()


def substitutions() -> list[str]:
    """Returns the patterns for `owner-work.yaml` in README.md."""
    return re.findall(r"^ *sed '([^']+)' deploy/kubernetes/owner-work\.yaml", readme(), re.MULTILINE)


@pytest.mark.parametrize("number", range(3))
def test_other_volumes_are_mounted_by_sed(schemas: Schemas, number: int) -> None:
    """Each `sed` in README.md makes valid objects of `owner-work.yaml`, with the volume that its pattern names."""
    substitution = substitutions()[number]
    done = subprocess.run(["sed", substitution, KUBERNETES / "owner-work.yaml"], capture_output=True, text=True, check=True)
    claim, pod = documents(done.stdout)
    assert [problem for each in (claim, pod) for problem in schemas.problems(each)] == []
    claims = {
        each["name"]: each["persistentVolumeClaim"]["claimName"] for each in pod["spec"]["volumes"] if "persistentVolumeClaim" in each
    }
    assert claims["work"] == claim["metadata"]["name"]
    expected = ("archive", "owner-work") if "archive" in substitution else ("index-worker-1", "owner-work-1")
    assert (claims["source"], pod["metadata"]["name"]) == expected
    assert pod["metadata"]["labels"].get("uses-archive", "false") == ("true" if expected[0] == "archive" else "false")
    (source,) = (each for each in pod["spec"]["containers"][0]["volumeMounts"] if each["name"] == "source")
    assert source.get("readOnly", False) is ("readOnly" not in substitution)


def test_pages_have_all_substitutions() -> None:
    """README.md has the three uses of `owner-work.yaml` that differ from the file."""
    assert len(substitutions()) == 3


def test_a_template_restores_no_snapshot(tools: Tools, schemas: Schemas, tmp_path: Path) -> None:
    """The patch in README.md for a quarantined index turns off snapshots, and only pods that are deleted get it."""
    (patch,) = re.findall(r"patch statefulset worker -p '(\{[^']*NOTARY_SNAPSHOTS_URL[^']*\})'", readme())
    named = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "worker"}} | json.loads(patch)
    folder = changed_copy("replay", tmp_path)
    folder.mkdir()
    kustomization = {"resources": ["../three-zones"], "patches": [{"patch": json.dumps(named)}]}
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    changed = render(tools, folder)
    assert [problem for manifest in changed for problem in schemas.problems(manifest)] == []
    assert of_kind(changed, "StatefulSet")["worker"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    config = worker_config(changed, tmp_path)
    assert (config.snapshots.url, config.snapshots.every_s) == ("", 0)
    assert "updateStrategy" not in of_kind(render(tools, folder.parent / "three-zones"), "StatefulSet")["worker"]["spec"]


def test_a_drain_of_a_zone_has_its_flags(rendered: Rendered) -> None:
    """The operations page has the flags without which `kubectl drain` refuses our pods or never ends.

    Our pods have `emptyDir` volumes. A zone has two of Kafka's pods, which stay in it, and Strimzi's budget lets one of all be away.
    """
    volumes = of_kind(rendered["three-zones"], "StatefulSet")["worker"]["spec"]["template"]["spec"]["volumes"]
    assert any("emptyDir" in each for each in volumes)
    page = (KUBERNETES.parents[1] / "docs" / "operations.md").read_text()
    (section,) = re.findall(r"^## Stop a site.*?(?=^## )", page, re.MULTILINE | re.DOTALL)
    for flag in ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout="):
        assert flag in section
    assert of_kind(rendered["three-zones"], "Kafka")["log"]["spec"]["kafka"]["template"]["podDisruptionBudget"] == {"maxUnavailable": 1}
    (first, second) = re.findall(r"`(?:[^`]*strimzi\.io/pool-name=)?((?:broker|controller)-a)`", section)
    assert {first, second} == {name for name in of_kind(rendered["three-zones"], "KafkaNodePool") if name.endswith("-a")}


@pytest.mark.seconds
@pytest.mark.parametrize("again", [False, True], ids=["rotated", "the Secret is replaced again"])
def test_snapshots_are_verified_after_a_rotation(rendered: Rendered, with_segments: list[Manifest], tmp_path: Path, again: bool) -> None:
    """The jobs find the key of a snapshot in the Secret of the rotation's first step, and in that of its last."""
    made = NotaryDirectory.create(tmp_path / "made")
    settings = {"SNAPSHOTS_URL": tmp_path / "store"}
    variables = {f"NOTARY_{name}": str(value) for name, value in settings.items()}
    assert notary("key", "prepare", "--config", made.config).returncode == 0
    secret, pod = tmp_path / "secret", tmp_path / "pod"
    secret.mkdir()
    pod.mkdir()
    for file in made.config.parent.glob("notary-key*"):
        shutil.copy2(file, secret)
    assert notary("key", "rotate", "--config", made.config).returncode == 0
    if again:
        shutil.rmtree(secret)
        secret.mkdir()
        for file in made.config.parent.glob("notary-key*"):
            shutil.copy2(file, secret)
        assert not [*secret.glob("*.next")]
    with NotaryProcess.start(made.config, settings=settings) as worker:
        assert worker.stop() == 0
    assert notary("snapshot", "create", "--config", made.config, "--name", "worker-1", **variables).returncode == 0
    of_jobs = [
        volume
        for manifests, job in ((rendered["three-zones"], "CronJob/snapshots"), (with_segments, "CronJob/segments"))
        for volume in pods(manifests)[job]["spec"]["volumes"]
        if volume["name"] == "keys"
    ]
    assert of_jobs[0] == of_jobs[1]
    for source in of_jobs[0]["projected"]["sources"]:
        for item in source["secret"]["items"]:
            if not source["secret"].get("optional") or (secret / item["key"]).exists():
                shutil.copy2(secret / item["key"], pod / item["path"])
    variables["NOTARY_KEY_HISTORY_FILE"] = str(pod / "notary-keys.json")
    verified = notary("snapshot", "verify", "--config", made.config, **variables)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def notary(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the notary with these variables in its environment."""
    command = [sys.executable, "-m", "notary", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(KUBERNETES.parents[1])} | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


# -- networks and commands


@overlays
def test_nothing_is_open_that_is_not_named(rendered: Rendered, overlay: str) -> None:
    """Both directions are closed to all pods, except for clients (HTTP port), Prometheus (health port) and Kafka's clients (brokers)."""
    policies = of_kind(rendered[overlay], "NetworkPolicy")
    assert policies["default-deny"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    rules = policies["to-workers"]["spec"]["ingress"]
    assert [[port["port"] for port in rule["ports"]] for rule in rules] == [["https"], ["health"]]
    assert all(rule["from"] for rule in rules)
    (broker_port,) = (port["port"] for rule in policies["to-brokers"]["spec"]["egress"] for port in rule["ports"])
    (listener,) = of_kind(rendered[overlay], "Kafka")["log"]["spec"]["kafka"]["listeners"]
    assert broker_port == listener["port"]
    assert listener["networkPolicyPeers"] == [{"podSelector": policies["to-brokers"]["spec"]["podSelector"]}]
    for name, pod in pods(rendered[overlay]).items():
        needs = any(volume["name"] == "kafka-user" for volume in pod["spec"]["volumes"])
        assert (pod["metadata"]["labels"].get("kafka-client") == "true") is needs, name


def test_each_rule_names_its_peers(with_segments: list[Manifest], mirrored: list[Manifest]) -> None:
    """Traffic to addresses outside is allowed on four ports alone. Every other rule names the pods, or the namespace, at the other end."""
    policies = {name: each["spec"] for name, each in of_kind([*with_segments, *mirrored], "NetworkPolicy").items()}
    assert {name for name, policy in policies.items() if not policy["podSelector"]} == {"default-deny", "names"}
    rules = {
        (name, tuple(value for labels in peer.values() for value in labels["matchLabels"].values()), port["port"])
        for name, policy in policies.items()
        for rule in (*policy.get("egress", []), *policy.get("ingress", []))
        for peer in rule.get("to", rule.get("from", [{}]))
        for port in rule.get("ports", [{"port": "any"}])
    }
    brokers = ("log", "log-kafka")
    assert rules == {
        ("names", ("kube-system", "kube-dns"), 53), ("to-workers", ("ingress",), "https"), ("to-workers", ("monitoring",), "health"),
        ("to-mirror", ("monitoring",), "health"), ("to-brokers", brokers, 9093), ("among-brokers", brokers, "any"),
        ("among-brokers", (), 443), ("among-brokers", (), 6443), ("to-snapshots", (), 443), ("to-segments", (), 443),
        ("to-source", (), 9094),
    }  # fmt: skip


def with_component(tools: Tools, component: str, folder: Path) -> list[Manifest]:
    """Returns the three zones with a component besides."""
    with_it = f"components: [../snapshots, ../{component}]"
    return render(tools, changed_copy("three-zones", folder, ("three-zones/kustomization.yaml", "components: [../snapshots]", with_it)))


@pytest.fixture(scope="module")
def with_segments(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """The three zones with the component `segments` besides."""
    return with_component(tools, "segments", tmp_path_factory.mktemp("segments"))


@pytest.fixture(scope="module")
def with_restore(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """The three zones with the component `restore` besides."""
    return with_component(tools, "restore", tmp_path_factory.mktemp("restore"))


@pytest.fixture(scope="module")
def other_pods(with_restore: list[Manifest], with_segments: list[Manifest], mirrored: list[Manifest]) -> list[Manifest]:
    """Objects with pods that no overlay of a notary that serves has."""
    return [*with_restore, *with_segments, *mirrored]


def test_jobs_read_and_write_one_archive(with_restore: list[Manifest], with_segments: list[Manifest]) -> None:
    """All jobs have the same archive. It is verified with the parties' keys, once, and restored as it is."""
    found = commands([*with_restore, *with_segments])
    jobs = (("spark_join", "archive"), ("notary", "verify-log"), ("notary", "archive"), ("spark_join", "restore"))
    assert [str(found[job].archive) for job in jobs] == ["/archive/log"] * 4
    assert [found[job].prefix for job in (jobs[0], jobs[3])] == ["notary"] * 2
    verify, restore = found[jobs[1]], found[jobs[3]]
    assert (str(verify.parties), str(verify.out.parent)) == ("/etc/notary-parties/parties.json", "/archive/reports")
    assert of_kind(with_restore, "CronJob")["verify"]["spec"]["jobTemplate"]["spec"]["backoffLimit"] == 0, "a violation stays one"
    assert (restore.go_on, restore.renumber, restore.without_unlisted, restore.until) == (True, False, False, None)


def test_a_restore_has_the_log_to_itself(with_restore: list[Manifest], schemas: Schemas) -> None:
    """Workers and jobs stop, Strimzi leaves the topics alone, and the job waits for the operator; it may do what a restore does."""
    assert [problem for manifest in with_restore for problem in schemas.problems(manifest)] == []
    assert of_kind(with_restore, "StatefulSet")["worker"]["spec"]["replicas"] == 0
    assert all(each["spec"]["suspend"] for each in of_kind(with_restore, "CronJob").values())
    topics_there = of_kind(with_restore, "KafkaTopic")
    assert len(topics_there) == 2
    assert all(each["metadata"]["annotations"] == {"strimzi.io/managed": "false"} for each in topics_there.values())
    assert of_kind(with_restore, "Job")["restore"]["spec"]["suspend"] is True
    assert ("spark_join", "restore") in commands(with_restore)
    wanted = ["Create", "Read", "Write", "Describe", "DescribeConfigs", "AlterConfigs"]
    rights = of_kind(with_restore, "KafkaUser")["restore"]["spec"]["authorization"]["acls"]
    assert {each["resource"]["name"]: each["operations"] for each in rights} == dict.fromkeys(topics_there, wanted)
    template = pods(with_restore)["Job/restore"]
    secrets = {each["secret"]["secretName"] for each in template["spec"]["volumes"] if "secret" in each}
    assert secrets == {"restore", "log-cluster-ca-cert"}
    assert template["metadata"]["labels"]["kafka-client"] == "true"


def test_segments_are_streamed_and_pruned(with_segments: list[Manifest], schemas: Schemas, tmp_path: Path) -> None:
    """Workers and the job get the place of segments and its credentials, beside those of snapshots, and may reach it."""
    assert [problem for manifest in with_segments for problem in schemas.problems(manifest)] == []
    (place,) = (name for name in of_kind(with_segments, "ConfigMap") if name.startswith("segments-"))
    job = pods(with_segments)["CronJob/segments"]
    variables = [
        {each["name"]: each for each in container.get("env", [])} for container in (worker_container(with_segments), *containers(job))
    ]
    assert [each["NOTARY_ARCHIVE_URL"]["valueFrom"]["configMapKeyRef"]["name"] for each in variables] == [place] * 2
    # The variables have the same names for both stores, and a pod has one value of each: so there is one Secret.
    for container in (worker_container(with_segments), *containers(job), *containers(pods(with_segments)["CronJob/snapshots"])):
        assert [each["secretRef"]["name"] for each in container["envFrom"]] == ["object-store"]
    assert worker_config(with_segments, tmp_path).archive.url
    labels = of_kind(with_segments, "NetworkPolicy")["to-segments"]["spec"]["podSelector"]["matchLabels"]
    for name in ("StatefulSet/worker", "CronJob/segments"):
        assert labels.items() <= pods(with_segments)[name]["metadata"]["labels"].items(), name
    assert ("notary", "archive") in commands(with_segments)
    assert "parquet" in EXTRAS["notary"], "pyarrow writes and reads segments"


@overlays
def test_pods_run_valid_commands(rendered: Rendered, overlay: str) -> None:
    """Each command that a pod runs is one of the notary's, with valid flags."""
    snapshots = {("notary", "snapshot")} if overlay == "three-zones" else set()
    assert commands(rendered[overlay]).keys() == {("notary", "serve"), ("notary", "verify-log"), ("spark_join", "archive")} | snapshots


def commands(manifests: list[Manifest]) -> dict[tuple[str, str], argparse.Namespace]:
    """Returns the commands that pods run, with their flags."""
    seen = {}
    for pod in pods(manifests).values():
        for container in pod["spec"]["containers"]:
            line = [*container["command"], *container.get("args", [])]
            if line[:2] == ["sh", "-c"]:
                line = shlex.split(line[2].partition("exec ")[2].replace("\\\n", ""))
            if line[0] != "notary":
                assert line[:3] == ["python", "-P", "-m"]
                line = line[3:]
            package, command, flags = line[0], line[1], line[2:]
            if package == "spark_join" or command == "verify-log":  # which passes its arguments on
                seen[package, command] = verifier().parse_args(["verify" if command == "verify-log" else command, *flags])
            else:
                parser = argparse.ArgumentParser(exit_on_error=False)
                command_named(command).add_arguments(parser)
                seen[package, command] = parser.parse_args(flags)
    return seen


def test_the_image_is_replaced(rendered: Rendered, tools: Tools, tmp_path: Path) -> None:
    """One transform of an overlay changes every image of the notary's."""
    images = {container["image"] for pod in pods(rendered["three-zones"]).values() for container in containers(pod)}
    assert images == {"registry.example/notary:0.1.0", "registry.example/notary-spark:0.1.0"}
    change = ("three-zones/kustomization.yaml", "newName: registry.example/", "newName: other.example/")
    changed = render(tools, changed_copy("three-zones", tmp_path, change))
    assert {container["image"].split("/")[0] for pod in pods(changed).values() for container in containers(pod)} == {"other.example"}
