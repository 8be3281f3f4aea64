"""A Kubernetes API server with its etcd, on free ports of loopback: an operator's `kubectl` works on it; there is no kubelet.

Both use TLS with certificates of their own authority. Admission is the API server's default: Pod Security, quotas, service accounts. The
controller manager creates pods from sets and jobs, if it is started; they are never scheduled or run.
"""

import json
import secrets
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from deploy.local.commands import run
from deploy.local.ports import free_ports, listens
from deploy.manifests import Kubernetes, Manifest
from deploy.pki import Authority
from loadtest.peers.servers import Servers

OPERATOR = "operator"
"""The field manager that applies the manifests."""


class ApiServer:
    """An API server that is ready, and kubectl for it."""

    def __init__(self, servers: Servers, programs: Kubernetes, url: str, tokens: dict[str, str]) -> None:
        """Do not call this; `serving` starts a server."""
        self._servers = servers
        self._programs = programs
        self._url = url
        self._tokens = tokens

    def kubectl(self, *arguments: str | Path) -> str:
        """Returns the output of kubectl. Raises CannotRun with kubectl's message if it fails or the server warns."""
        settings: list[str | Path] = ["--kubeconfig", self.kubeconfig("admin"), "--cache-dir", self._servers.folder / "cache"]
        return run([self._programs.kubectl, *settings, "--warnings-as-errors", *arguments])

    def apply(self, *what: str | Path) -> str:
        """Apply as the README says; `what`: `-k` or `-f` with a folder or a file, and more flags."""
        return self.kubectl("apply", "--server-side", "--field-manager", OPERATOR, "--validate=strict", *what)

    def stored(self, *what: str | Path) -> dict[str, Manifest]:
        """Returns the objects as the server has them, by kind and name. `what`: as for `apply`, or a kind and flags."""
        found: list[Manifest] = json.loads(self.kubectl("get", "-o", "json", *what))["items"]
        return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}

    def start_controllers(self) -> None:
        """Start the controller manager, with the controllers that create pods and claims."""
        (port,) = free_ports(1)
        kubeconfig = self.kubeconfig("controllers")
        command: list[Any] = [
            self._programs.controller_manager,
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--controllers=serviceaccount-controller,statefulset-controller,job-controller,cronjob-controller,disruption-controller",
            # Each controller has its own rights, as in a cluster.
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self._servers.folder / 'controllers'}",
        ]
        self._servers.start("controllers", [str(part) for part in command], lambda: listens(port))

    def kubeconfig(self, user: str) -> Path:
        """Returns the file with which a user connects."""
        file = self._servers.folder / f"{user}.kubeconfig"
        if not file.exists():
            authority = str(self._servers.folder / "pki" / "ca.pem")
            contents = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "here", "cluster": {"server": self._url, "certificate-authority": authority}}],
                "users": [{"name": user, "user": {"token": self._tokens[user]}}],
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": user}}],
                "current-context": "here",
            }
            file.write_text(yaml.safe_dump(contents))
        return file


@contextmanager
def serving(programs: Kubernetes, etcd: Path, definitions: Path) -> Iterator[ApiServer]:
    """Start a server with these custom resource definitions and nothing else."""
    with Servers.opened("kubernetes") as servers:
        pki = servers.folder / "pki"
        authority = Authority.create(pki)
        authority.issue("server", hosts=["127.0.0.1", "localhost"], server=True)
        client, peer, port = free_ports(3)
        _start_etcd(servers, etcd, pki, client, peer)

        tokens = {"admin": secrets.token_hex(), "controllers": secrets.token_hex()}
        (servers.folder / "tokens.csv").write_text(
            f'{tokens["admin"]},admin,1,"system:masters"\n{tokens["controllers"]},system:kube-controller-manager,2\n'
        )
        url = f"https://127.0.0.1:{port}"
        trust = ssl.create_default_context(cafile=str(pki / "ca.pem"))

        def ready() -> bool:
            try:
                return httpx.get(f"{url}/readyz", verify=trust, headers={"Authorization": f"Bearer {tokens['admin']}"}).status_code == 200
            except httpx.TransportError:
                return False

        certificate, key, ca = (pki / name for name in ("server/cert.pem", "server/key.pem", "ca.pem"))
        flags = {
            "etcd-servers": f"https://127.0.0.1:{client}",
            "etcd-cafile": ca,
            "etcd-certfile": certificate,
            "etcd-keyfile": key,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            # It would pass the address to pods, and rejects a loopback address.
            "endpoint-reconciler-type": "none",
            "secure-port": port,
            "tls-cert-file": certificate,
            "tls-private-key-file": key,
            "token-auth-file": servers.folder / "tokens.csv",
            "authorization-mode": "RBAC",
            # Pod Security must reject a privileged pod, not this setting.
            "allow-privileged": "true",
            "service-account-issuer": url,
            "service-account-key-file": certificate,
            "service-account-signing-key-file": key,
            "service-cluster-ip-range": "10.0.0.0/24",
        }
        servers.start("api-server", [str(programs.apiserver), *[f"--{name}={value}" for name, value in flags.items()]], ready)

        server = ApiServer(servers, programs, url, tokens)
        server.apply("-f", definitions)
        server.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        yield server


def _start_etcd(servers: Servers, etcd: Path, pki: Path, client: int, peer: int) -> None:
    flags: dict[str, object] = {
        "name": "m0",
        "data-dir": servers.folder_for("etcd"),
        "listen-client-urls": f"https://127.0.0.1:{client}",
        "advertise-client-urls": f"https://127.0.0.1:{client}",
        "listen-peer-urls": f"https://127.0.0.1:{peer}",
        "initial-advertise-peer-urls": f"https://127.0.0.1:{peer}",
        "initial-cluster": f"m0=https://127.0.0.1:{peer}",
        "log-level": "warn",
        "unsafe-no-fsync": "true",
    }
    for side in ("", "peer-"):
        flags |= {f"{side}cert-file": pki / "server/cert.pem", f"{side}key-file": pki / "server/key.pem"}
        flags |= {f"{side}trusted-ca-file": pki / "ca.pem", f"{side}client-cert-auth": "true"}
    servers.start("etcd", [str(etcd), *[f"--{name}={value}" for name, value in flags.items()]], lambda: listens(client))
