"""Kafka's files: properties of controllers and brokers, the scripts that format their disks, and the ACLs.

Comments mark the safety settings, and give the reasons. Servers authenticate to each other with certificates of the installation's own
authority. The common name of a certificate is its principal.
"""

import uuid
from typing import Final

from deploy.render.sites import Node, Site, Sites, broker_name, controller_name, encode_uuid, worker_principal

MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of one batch of the notary, with Kafka's framing."""

_SCRAM: Final = {
    "listener.name.scram.ssl.client.auth": "none",
    "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "listener.name.scram.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
}
"""Settings of the port for clients with a password. A user has the rights of the certificate with the same name."""

Acl = tuple[tuple[str, ...], tuple[str, ...]]
"""(principals, operations): the operations that these principals may do on both topics."""


def controller_properties(sites: Sites, node: Node) -> str:
    """Renders the properties of one controller."""
    listener = f"CONTROLLER://{_bind(sites)}:{sites.ports.controller}"
    return _text(
        {
            "process.roles": "controller",
            "node.id": node.id,
            "listeners": listener,
            "advertised.listeners": f"CONTROLLER://{node.host}:{sites.ports.controller}",
            "default.replication.factor": sites.kafka.replication,
            **_shared(sites, controller_name(node)),
        }
    )


def broker_properties(sites: Sites, site: Site, node: Node) -> str:
    """Renders the properties of one broker."""
    replicas, in_sync = sites.kafka.replication, in_sync_min(sites)
    return _text(
        {
            "process.roles": "broker",
            "node.id": node.id,
            "broker.rack": site.name,
            "listeners": _listeners(sites, _bind(sites)),
            "advertised.listeners": _listeners(sites, node.host),
            "inter.broker.listener.name": "BROKER",
            **_shared(sites, broker_name(node)),
            **(_SCRAM if sites.ports.scram else {}),
            "replica.fetch.max.bytes": MESSAGE_BYTES_MAX,
            # Kafka's internal topics, which are created on first use.
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
        }
    )


def _shared(sites: Sites, name: str) -> dict[str, object]:
    """Returns the settings that controllers and brokers share: both decide about topics and rights."""
    controllers = ",".join(f"{node.host}:{sites.ports.controller}" for node in sites.controllers)
    protocol = "SSL" if sites.tls else "PLAINTEXT"
    shared: dict[str, object] = {
        "controller.quorum.bootstrap.servers": controllers,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": f"BROKER:{protocol},CONTROLLER:{protocol}" + (",SCRAM:SASL_SSL" if sites.ports.scram else ""),
        "log.dirs": data_folder(sites, name),
        # Safety: a replica that lacks acknowledged records never leads, only operators create topics, and no topic or record is deleted.
        "unclean.leader.election.enable": "false",
        "auto.create.topics.enable": "false",
        "delete.topic.enable": "false",
        "min.insync.replicas": in_sync_min(sites),
        "log.retention.ms": -1,
        "log.retention.bytes": -1,
        "message.max.bytes": MESSAGE_BYTES_MAX,
        # A broker whose controller is cut off tries the next one only after its request has timed out: 30 s by default.
        "controller.socket.timeout.ms": 5_000,
    }
    if sites.tls:
        shared |= _tls(sites, name) | {
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([A-Za-z0-9._-]+)$/$1/,DEFAULT",
            # Kafka denies everything that no ACL allows. Brokers and controllers are exempt from the ACLs; no client is.
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": ";".join(f"User:{name}" for name in sites.super_users),
        }
    return shared


def _tls(sites: Sites, name: str) -> dict[str, object]:
    folder = f"{sites.folders.config}/tls"
    return {
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": f"{folder}/{name}/keystore.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": f"{folder}/ca.pem",
    }


def client_properties(sites: Sites, name: str) -> str:
    """Renders the `--command-config` file with which Kafka's own tools act as this principal."""
    return _text({"security.protocol": "SSL", **_tls(sites, name)} if sites.tls else {"security.protocol": "PLAINTEXT"})


def format_script(sites: Sites, properties: str, name: str) -> str:
    """Renders the script that formats the empty disk of a controller or broker. A person runs it once; no systemd unit does."""
    folder = data_folder(sites, name)
    flags = [f"--cluster-id {sites.kafka.cluster_id}", f"--config {sites.folders.config}/{properties}"]
    if name.startswith("controller"):
        # The directory ids make these controllers voters from the start, so each controller needs the ids of all.
        voters = ",".join(f"{node.id}@{node.host}:{sites.ports.controller}:{directory_id(sites, node)}" for node in sites.controllers)
        # Eligible leader replicas: the last in-sync replicas stay electable if they fail one after the other. The notary relies on it.
        flags += [f"--initial-controllers {voters}", "--feature eligible.leader.replicas.version=1"]
    lines = " \\\n    ".join([f"exec {sites.folders.kafka}/bin/kafka-storage.sh format", *flags])
    return f"""#!/bin/sh
# Makes {folder} the disk of {name}. Once, when the cluster is new.
# Never for a disk that was lost: a controller with an empty log and a vote forgets what it voted for. See README.md, A lost disk.
set -eu
if [ -e {folder}/meta.properties ]; then
    echo "{folder} is formatted already: nothing was changed" >&2
    exit 1
fi
{lines}
"""


def acl_script(sites: Sites) -> str:
    """Renders the script that adds the ACLs. It runs on a broker's host: only brokers and controllers may change ACLs."""
    lines = [
        f'{sites.folders.kafka}/bin/kafka-acls.sh --bootstrap-server {sites.bootstrap} --command-config "$1" --add \\\n    '
        + " \\\n    ".join(
            [
                " ".join(f"--allow-principal User:{name}" for name in principals),
                " ".join(f"--operation {operation}" for operation in operations),
                " ".join(f"--topic {topic}" for topic in sites.topics),
            ]
        )
        for principals, operations in acls(sites)
    ]
    return (
        """#!/bin/sh
# Gives the rights of workers, readers and operators on both topics. Running it again changes nothing. It takes no right away:
# `kafka-acls.sh --list` shows all, `--remove` removes one.
# Usage, as root on a broker's host: acls.sh /etc/notary/broker-client.properties
set -eu
"""
        + "\n".join(lines)
        + "\n"
    )


def acls(sites: Sites) -> list[Acl]:
    """Returns the rights of the principals on both topics. No client may Alter, AlterConfigs or Delete (which covers DeleteRecords)."""
    rights: list[Acl] = [
        (tuple(map(worker_principal, sites.workers)), ("Read", "Write", "Describe", "DescribeConfigs")),
        (sites.clients.readers, ("Read", "Describe", "DescribeConfigs")),
        (sites.clients.operators, ("Create", "Read", "Write", "Describe", "DescribeConfigs")),
    ]
    return [(principals, operations) for principals, operations in rights if principals]


def directory_id(sites: Sites, node: Node) -> str:
    """Returns the id of a controller's data folder, which depends only on the cluster id and the node id."""
    return encode_uuid(uuid.uuid5(uuid.NAMESPACE_URL, f"kafka:{sites.kafka.cluster_id}:{node.id}"))


def data_folder(sites: Sites, name: str) -> str:
    """Returns the data folder of a controller, a broker or the worker."""
    return f"{sites.folders.data}/{name}"


def in_sync_min(sites: Sites) -> int:
    """Returns the number of replicas that must have a record before it is acknowledged."""
    return min(2, sites.kafka.replication)


def _listeners(sites: Sites, host: str) -> str:
    return f"BROKER://{host}:{sites.ports.broker}" + (f",SCRAM://{host}:{sites.ports.scram}" if sites.ports.scram else "")


def _bind(sites: Sites) -> str:
    # A host name would be bound to the address that the host itself resolves it to, on Debian 127.0.1.1. Empty: all addresses.
    return "" if sites.tls else "127.0.0.1"


def _text(properties: dict[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())
