"""Tests the container images, built on a base of Debian's packages, and run as in pods and compose: read-only, as their user."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.image.__main__ import EXTRAS, build, fetch, main, make_context
from deploy.local.commands import run
from deploy.local.errors import CannotRun
from deploy.manifests import KUBERNETES
from tests.clients.party import Party, spend, state
from tests.rights import needs_root
from tests.spark.archived import archive
from tests.spark.conftest import settings_folder
from tests.spark.test_verify import DECIDED, honest

pytestmark = [needs_root, pytest.mark.image, pytest.mark.timeout(1800)]

USER = 10001
NAME = "O=Image,L=Test,C=XX"
CHROOT = ("--isolation", "chroot", "--network", "host")  # needs no container runtime


@dataclass
class Store:
    """A folder of images of this test's own."""

    options: tuple[str, ...]

    def buildah(self, command: str, *words: str | Path) -> str:
        """Returns the output of a buildah command."""
        return run(["buildah", command, *self.options, *words]).strip()

    def build(self, context: Path, *images: str) -> None:
        """Build images as an operator does, with equal times in them."""
        build(context, images, "localhost/base", "buildah", [*self.options, *CHROOT, "--timestamp", "0"])


@dataclass
class Image:
    """An image, its configuration, and its files."""

    config: dict[str, Any]
    root: Path

    @contextlib.contextmanager
    def running(self, folders: Mapping[str, Path], *words: str, entrypoint: bool = True) -> Iterator[subprocess.Popen[str]]:
        """Run the image as process 1, with its user and variables alone; only these folders and /tmp are writable."""
        script = """
            root="$1" count="$2"; shift 2; hostname pod
            mount --bind "$root" "$root"; mount -o remount,ro,bind "$root"
            while [ "$count" -gt 0 ]; do mount --bind "$1" "$root$2"; shift 2; count=$((count - 1)); done
            mount -t tmpfs none "$root/tmp"; mount -t proc none "$root/proc"; mount --rbind /dev "$root/dev"
            exec chroot --userspec="$USER_OF_IMAGE" --groups= "$root" env -i -C "$FOLDER_OF_IMAGE" "$@"
        """
        for inside in folders:
            (self.root / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)  # a runtime creates its mount points too
        mounts = [str(part) for inside, outside in folders.items() for part in (outside, inside)]
        begun = [*self.config["Entrypoint"], *words] if entrypoint else words
        unshare = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "sh", "-ec", script, "sh"]
        command = [*unshare, str(self.root), str(len(folders)), *mounts]
        environment = os.environ | {"USER_OF_IMAGE": self.config["User"], "FOLDER_OF_IMAGE": self.config["WorkingDir"]}
        with subprocess.Popen(
            [*command, *self.config["Env"], *begun], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def ran(self, folders: Mapping[str, Path], *words: str, entrypoint: bool = True) -> str:
        """Returns the output of a process of the image; fails unless it ended with 0."""
        with self.running(folders, *words, entrypoint=entrypoint) as process:
            output, _ = process.communicate(timeout=900)
            assert process.returncode == 0, output
            return output


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build context of both images."""
    folder = tmp_path_factory.mktemp("context")
    make_context(folder, EXTRAS)
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the base image."""
    folder = tmp_path_factory.mktemp("store")
    store = Store(("--root", str(folder / "root"), "--runroot", str(folder / "run")))
    base = fetch()
    made = store.buildah("from", "scratch")
    store.buildah("add", "--quiet", made, base, "/")
    store.buildah("commit", "--quiet", "--rm", made, "base")
    yield store
    store.buildah("umount", "--all")


def _image(store: Store, name: str) -> Image:
    container = store.buildah("from", f"localhost/{name}")
    config = json.loads(store.buildah("inspect", "--type", "image", f"localhost/{name}"))["OCIv1"]["config"]
    root = Path(store.buildah("mount", container))
    (root / "etc/hosts").write_text("127.0.0.1 localhost pod\n")  # as a runtime does
    return Image(config, root)


@pytest.fixture(scope="module")
def worker(store: Store, context: Path) -> Image:
    """The image `notary`."""
    store.build(context, "notary")
    return _image(store, "notary")


@pytest.fixture(scope="module")
def spark(store: Store, context: Path) -> Image:
    """The image `notary-spark`."""
    store.build(context, "notary-spark")
    return _image(store, "notary-spark")


def _folder(path: Path) -> Path:
    path.mkdir()
    os.chown(path, USER, USER)
    return path


def test_a_worker_decides_and_drains(worker: Image, tmp_path: Path) -> None:
    """A worker on the embedded log decides a party's submission; as process 1 it ends on SIGTERM with 0."""
    folders = {"/config": _folder(tmp_path / "config"), "/var/lib/notary": _folder(tmp_path / "index")}
    worker.ran(folders, "init", "/config/notary", "--name", NAME, "--origin", "image.example/notary")
    party = Party(NAME)
    (tmp_path / "config/party.pub").write_bytes(party.public_pem)
    config = ["--config", "/config/notary/notary.toml"]
    worker.ran(folders, "party", "add", party.name, "--public-key", "/config/party.pub", *config)
    with worker.running(folders, "serve", *config, "--listen", "127.0.0.1:0", "--json") as process:
        assert process.stdout is not None
        url = next(found["url"] for line in process.stdout if "url" in (found := json.loads(line)))
        submission = party.submission(spend(state("a coin")), spend(state("a coin"), content="again"))
        answer = httpx.post(f"{url}/v1/submissions", content=submission.body, headers={"Content-Type": "application/json"}, timeout=60)
        assert answer.status_code == 200, answer.text
        assert [decision["outcome"] for decision in answer.json()["decisions"]] == ["committed", "rejected"]
        # The signal is for the process in the image; `unshare` does not pass it on.
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), getattr(signal, worker.config["StopSignal"]))
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output


def test_what_the_manifests_expect(worker: Image, spark: Image) -> None:
    """Names, user, folders and commands are those of deploy/kubernetes; the root is read-only."""
    users, named = set(), set()
    for file in ("workers", "spark"):
        for pod in filter(None, map(_pod, yaml.safe_load_all((KUBERNETES / f"base/{file}.yaml").read_text()))):
            users.add(f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}")
            named |= {(each["image"], each["command"][0]) for each in [*pod.get("initContainers", []), *pod["containers"]]}
    images = {"notary": worker, "notary-spark": spark}
    assert {image for image, _ in named} == images.keys() == EXTRAS.keys()
    for name, command in named | {("notary-spark", "python"), ("notary-spark", "bash")}:
        assert images[name].ran({}, "sh", "-c", f"command -v {command}", entrypoint=False)
    for image in images.values():
        assert {image.config["User"]} == users
        assert f"notary:x:{USER}:{USER}:" in (image.root / "etc/passwd").read_text()
        output = image.ran({}, "sh", "-c", "touch /tmp/x && ! touch /var/lib/notary/x && ! touch /etc/x && id", entrypoint=False)
        assert output.count("Read-only file system") == 2
        assert f"uid={USER}(notary) gid={USER}(notary) groups={USER}(notary)" in output


def _pod(manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    spec = manifest.get("spec") or {}
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    found: dict[str, Any] | None = spec.get("template", {}).get("spec")
    return found


def test_what_is_in_them(worker: Image, spark: Image) -> None:
    """The images have no tests, no load generator, no keys and no build files; all files belong to root, and only root may write them."""
    for image in (worker, spark):
        assert not (image.root / "wheels").exists()
        packages = next((image.root / "opt/notary/lib").glob("python3*/site-packages"))
        assert (packages / "notary").is_dir()
        assert not {path.name for path in packages.iterdir()} & {"tests", "loadtest", "pip", "setuptools"}
        assert (packages / "pyspark").exists() == (image is spark)
        assert (packages / "vodozemac").exists() == (image is worker)
        kept = [path for path in (image.root / "opt").rglob("*") if not path.is_symlink()]
        assert len(kept) > 1000
        assert {path.stat().st_uid for path in kept} == {0}
        assert not [path for path in kept if path.stat().st_mode & 0o022]
        assert not [path for path in kept if path.suffix in (".key", ".p12", ".jks") or "pip" in path.parts]
        assert not [path for path in kept if path.suffix == ".pem" and "PRIVATE" in path.read_text()]
        assert not list((image.root / "root").glob(".*cache*"))


def test_two_builds_are_one_image(worker: Image, store: Store, tmp_path: Path) -> None:
    """Two builds of one commit have the same id, so the same files and configuration."""
    before = store.buildah("inspect", "--type", "image", "--format", "{{.FromImageID}}", "localhost/notary")
    make_context(tmp_path, ["notary"])
    time.sleep(1)  # some file times have a resolution of a second
    store.build(tmp_path, "notary")
    assert store.buildah("inspect", "--type", "image", "--format", "{{.FromImageID}}", "localhost/notary") == before


def test_spark_verifies_an_archive(spark: Image, tmp_path: Path) -> None:
    """The command of the job `verify`, on an archive of honest workers' records, finds their decisions."""
    archived, work = _folder(tmp_path / "archive"), _folder(tmp_path / "work")
    writer = honest()
    archive(writer.log.by_partition, archived / "log")
    (tmp_path / "parties").mkdir()
    (tmp_path / "parties/parties.json").write_text(json.dumps({writer.party.name: writer.party.public_pem.decode()}))
    (job,) = (each for each in yaml.safe_load_all((KUBERNETES / "base/spark.yaml").read_text()) if each["metadata"]["name"] == "verify")
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    settings_folder(work / "settings")
    script = "export SPARK_CONF_DIR=/work/settings\n" + container["args"][0].replace("--memory 4g", "--memory 1g")
    folders = {"/archive": archived, "/work": work, "/etc/notary-parties": tmp_path / "parties"}
    spark.ran(folders, *container["command"], script, entrypoint=False)
    (report,) = (json.loads(file.read_text()) for file in archived.glob("reports/*/report.json"))
    assert (report["decisions"], report["violations"], report["signatures_checked"]) == (DECIDED, {}, True)
    root = writer.replayed.root(DECIDED)
    assert report["root"] == root.hex()


def test_a_base_that_is_not_there(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The builder's error for a missing base is reported with its text."""
    (tmp_path / "wheels").mkdir()
    with pytest.raises(CannotRun, match="localhost/none"):
        build(tmp_path, ["notary"], "localhost/none", "buildah", store.options)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        assert main(["build", "--base", "localhost/base"]) == 2
    assert "buildah, podman, docker" in capsys.readouterr().err
