"""Third-party tools and definitions, fetched once into `.cache/manifests`. A rename puts each in place, so none is incomplete.

Go modules are pinned by version and hash; kustomize is built with the `go.sum` of its own module. Ivy fetches Strimzi's jars
(`deploy/kafka/ivy.xml`). Promtool and Prometheus are those on the PATH, else those of Debian's package, unpacked: nothing is installed or
started. Kubernetes' own programs are built from `kubernetes/go.mod`, for `make manifests-live` only.
"""

import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from deploy.local import golang
from deploy.local.commands import run
from deploy.local.errors import CannotRun
from deploy.local.jars import JMX, STRIMZI, cache_folder, fetch_jars
from deploy.local.java import find_java
from ordering.durable import locked_file, move_into_place

STRIMZI_JAVA_MIN: Final = 21
_STRIMZI_TYPES: Final = ("kafka.Kafka", "nodepool.KafkaNodePool", "topic.KafkaTopic", "user.KafkaUser")


@dataclass(frozen=True)
class GoModule:
    """A Go module at one version, with the hash of its content in the format of `go.sum`."""

    path: str
    version: str
    sum: str
    crds: tuple[str, ...] = ()
    """Its files that define the custom resources used here."""


KUSTOMIZE: Final = GoModule("sigs.k8s.io/kustomize/kustomize/v5", "v5.8.1", "h1:Pgsg5psubpVEy7Nf6S89PARg5VmmWUC1l9dC6Dl4PG0=")
DEFINING: Final = (
    GoModule(
        "github.com/prometheus-operator/prometheus-operator",
        "v0.85.0",
        "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
        tuple(f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml" for kind in ("podmonitors", "prometheusrules")),
    ),
    GoModule(
        "github.com/cert-manager/cert-manager",
        "v1.21.2",
        "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=",
        tuple(f"deploy/crds/cert-manager.io_{kind}.yaml" for kind in ("certificates", "clusterissuers", "issuers")),
    ),
)

KUBERNETES_MODULE: Final = Path(__file__).parent / "kubernetes"


@dataclass(frozen=True)
class Kubernetes:
    """Paths of Kubernetes programs, all of one version."""

    version: str
    apiserver: Path
    controller_manager: Path
    kubectl: Path


@dataclass(frozen=True)
class Tools:
    """Paths of the tools and of the definitions."""

    kustomize: Path
    promtool: Path
    prometheus: Path
    jmx_exporter: Path
    """The JMX exporter's jar, a Java agent."""
    crds: Path
    """A folder of CustomResourceDefinitions, one a file."""


def fetch() -> Tools:
    """Fetch and build the tools that are missing, and return all. Raises CannotRun."""
    home = cache_folder() / "manifests"
    home.mkdir(parents=True, exist_ok=True)
    with locked_file(home / "fetch.lock"):
        promtool, prometheus = _prometheus(home)
        exporter = fetch_jars(find_java(), JMX) / "libs" / JMX.landmark
        return Tools(kustomize=_kustomize(home), promtool=promtool, prometheus=prometheus, jmx_exporter=exporter, crds=_definitions(home))


def build_kubernetes() -> Kubernetes:
    """Build Kubernetes' API server, controller manager and kubectl if missing (many minutes); return their paths. Raises CannotRun."""
    (version,) = re.findall(r"^\s*k8s\.io/kubernetes (v\S+)", (KUBERNETES_MODULE / "go.mod").read_text(), re.MULTILINE)
    names = ("kube-apiserver", "kube-controller-manager", "kubectl")
    folder = golang.build(
        KUBERNETES_MODULE,
        [f"k8s.io/kubernetes/cmd/{name}" for name in names],
        cache_folder() / "manifests" / "kubernetes",
        # Kubernetes' own builds set the version in this way.
        link=f"-s -w -X k8s.io/component-base/version.gitVersion={version}",
    )
    return Kubernetes(version, *[folder / name for name in names])


def _kustomize(home: Path) -> Path:
    program = home / f"kustomize-{KUSTOMIZE.version}"
    if not program.exists():
        _report(f"building kustomize {KUSTOMIZE.version}")
        beside = program.with_suffix(".making")
        run(["go", "build", "-mod=readonly", "-buildvcs=false", "-o", beside, "."], cwd=_module(KUSTOMIZE))
        move_into_place(beside, program)
    return program


def _definitions(home: Path) -> Path:
    versions = [STRIMZI.version, *(module.version.lstrip("v") for module in DEFINING)]
    folder = home / f"definitions-{'-'.join(versions)}-{len(_STRIMZI_TYPES)}"
    if not folder.exists():
        _report("collecting the definitions of custom resources")
        with tempfile.TemporaryDirectory(dir=home) as making:
            beside = Path(making) / "crds"
            beside.mkdir()
            for module in DEFINING:
                source = _module(module)
                for file in module.crds:
                    shutil.copyfile(source / file, beside / Path(file).name)
            _generate_strimzi(beside)
            move_into_place(beside, folder)
    return folder


def _generate_strimzi(folder: Path) -> None:
    libs = fetch_jars(find_java(), STRIMZI) / "libs"
    java = find_java(STRIMZI_JAVA_MIN)
    types = [f"io.strimzi.api.kafka.model.{name}={folder / name.rpartition('.')[2]}.yaml" for name in _STRIMZI_TYPES]
    run([java.path, "-cp", f"{libs}/*", "io.strimzi.crdgenerator.CrdGenerator", "--yaml", *types])


def _module(module: GoModule) -> Path:
    found = orjson.loads(run(["go", "mod", "download", "-json", f"{module.path}@{module.version}"]))
    if found["Sum"] != module.sum:
        raise CannotRun(f"{module.path} {module.version} has the hash {found['Sum']}, and {module.sum} is pinned")
    return Path(found["Dir"])


def _prometheus(home: Path) -> tuple[Path, Path]:
    names = ("promtool", "prometheus")
    if all(found := [shutil.which(name) for name in names]):
        return Path(str(found[0])), Path(str(found[1]))
    folder = home / "prometheus"
    if not folder.exists():
        if shutil.which("apt-get") is None:
            raise CannotRun("promtool and prometheus are not on the PATH, and this is no Debian: install Prometheus 2.42 or newer")
        _report("unpacking Debian's prometheus")
        download = ["apt-get", "download", "-qq", "-o", f"APT::Sandbox::User={os.environ.get('USER', 'root')}", "prometheus"]
        with tempfile.TemporaryDirectory(dir=home) as making:
            try:
                run(download, cwd=Path(making))
            except CannotRun:
                run(["apt-get", "update", "-qq"])  # a new machine has no package lists yet
                run(download, cwd=Path(making))
            (package,) = Path(making).glob("*.deb")
            run(["dpkg", "-x", package, Path(making) / "unpacked"])
            move_into_place(Path(making) / "unpacked", folder)
    return folder / "usr/bin/promtool", folder / "usr/bin/prometheus"


def _report(what: str) -> None:
    print(f"manifests: {what}", file=sys.stderr, flush=True)
