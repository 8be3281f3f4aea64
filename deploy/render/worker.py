"""The notary's files: `notary.toml` of one worker, and the files for `notary init` and the owner's commands."""

import shlex
from collections.abc import Mapping

import orjson

from deploy.render.kafka import in_sync_min
from deploy.render.sites import Site, Sites, SiteWorker, worker_principal


def notary_toml(sites: Sites, site: Site, worker: SiteWorker) -> str:
    """Renders the configuration of one worker."""
    config, security = sites.folders.config, _security(sites, worker_principal(worker))
    return _toml(
        {
            "": {
                "name": sites.notary.name,
                "origin": sites.notary.origin,
                "key_file": f"{config}/keys/notary-key.pem",
                "key_history_file": f"{config}/keys/notary-keys.json",
                "parties_file": f"{config}/keys/parties.json",
            },
            "log": {
                "kind": "kafka",
                "bootstrap": sites.bootstrap,
                "topic_prefix": sites.notary.topic_prefix,
                **security,
            },
            "worker": {"name": worker.name, "data_centre": site.name},
            "http": {
                "listen": f"{worker.host}:{sites.ports.worker}",
                "health_listen": f"{worker.host}:{sites.ports.health}",
                **({"tls_cert_file": security["cert_file"], "tls_key_file": security["key_file"]} if sites.tls else {}),
            },
            "index": {"directory": f"{sites.folders.data}/worker/index"},
            **({"snapshots": {"url": sites.snapshots.url, "every_s": sites.snapshots.every_s}} if sites.snapshots.url else {}),
            **({"archive": {"url": sites.archive.url}} if sites.archive.url else {}),
        }
    )


def log_settings_toml(sites: Sites, operator: str) -> str:
    """Renders the settings with which `notary init --log-settings` acts as this principal."""
    return _toml({"": _security(sites, operator)})


def init_script(sites: Sites) -> str:
    """Renders the script that creates the notary: its keys, both topics and the log's first record."""
    quoted = [shlex.quote(text) for text in (sites.notary.name, sites.notary.origin)]
    warning = "" if in_sync_min(sites) == 2 else "# One copy: the loss of a disk loses the log.\n"
    return f"""#!/bin/sh
# Makes the notary in the folder $1: its keys, both topics and the log's first record. Running it again goes on where it stopped.
{warning}set -eu
exec {sites.folders.notary}/bin/notary init "$1" --name {quoted[0]} --origin {quoted[1]} \\
    --kafka {sites.bootstrap} --topic-prefix {sites.notary.topic_prefix} \\
    --partitions {sites.notary.payload_partitions} --replication {sites.kafka.replication} \\
    --log-settings {sites.folders.config}/log-settings.toml
"""


def _security(sites: Sites, name: str) -> dict[str, str]:
    if not sites.tls:
        return {"security_protocol": "PLAINTEXT"}
    tls = f"{sites.folders.config}/tls"
    files = {"ca_file": f"{tls}/ca.pem", "cert_file": f"{tls}/{name}/cert.pem", "key_file": f"{tls}/{name}/key.pem"}
    return {"security_protocol": "SSL", **files}


def _toml(sections: Mapping[str, Mapping[str, str | int]]) -> str:
    lines = ["# Rendered from the sites file: change that one, and render again. Every setting: docs/configuration.md."]
    for section, settings in sections.items():
        lines += ["", f"[{section}]"] if section else []
        # A JSON string is a TOML basic string, except for DEL, which `isprintable` has excluded in `sites`.
        lines += [f"{key} = {orjson.dumps(value).decode()}" for key, value in settings.items()]
    return "\n".join(lines) + "\n"
