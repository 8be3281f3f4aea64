"""systemd units. Each process runs in a sandbox: it can write to its own folder and reach the network, and nothing else.

A unit never formats a disk. It does not start on an unformatted disk, since a missing mount looks like one.
"""

from typing import Final, Literal

from deploy.render.kafka import data_folder
from deploy.render.sites import Sites

_SANDBOX: Final = """\
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
DevicePolicy=closed
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ProtectProc=invisible
PrivateIPC=yes
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
KeyringMode=private
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
UMask=0077
"""


def worker_unit(sites: Sites) -> str:
    """Renders the unit of a worker. Its acceptor processes are its children, so they are in its sandbox and end with it."""
    folder = data_folder(sites, "worker")
    writable = " ".join(each for each in (folder, sites.snapshots.folder, sites.archive.folder) if each)
    return f"""\
{_head(f"Notary worker of {sites.notary.origin}", "notary-worker", " kafka-broker.service")}AssertPathIsDirectory={folder}

[Service]
Type=exec
User=notary
Group=notary
# Python imports nothing from the working directory.
Environment=PYTHONSAFEPATH=1
ExecStart={sites.folders.notary}/bin/notary serve --config {sites.folders.config}/notary.toml
# SIGHUP: the worker reads certificates, parties and the log level again.
ExecReload=/bin/kill -HUP $MAINPID
# Exit code 2: continuing could contradict earlier answers, so a person looks first (docs/runbook.md).
Restart=on-failure
RestartSec=2
RestartPreventExitStatus=2
# SIGTERM goes to the worker alone, which answers its admitted submissions (drain_ms_max) and ends its children.
KillMode=mixed
TimeoutStopSec=60
LimitNOFILE=65536
LimitCORE=0
ReadWritePaths={writable}
{_SANDBOX}MemoryDenyWriteExecute=yes

[Install]
WantedBy=multi-user.target
"""


def kafka_unit(sites: Sites, role: Literal["controller", "broker"], name: str) -> str:
    """Renders the unit of one controller or broker."""
    heap_mib = sites.kafka.broker_heap_mib if role == "broker" else sites.kafka.controller_heap_mib
    config, folder = sites.folders.config, data_folder(sites, name)
    # Java checks certificates against the revocation list in the `tls` folder; without the list it rejects every connection.
    revocation = ["-Dcom.sun.net.ssl.checkRevocation=true", "-Dcom.sun.security.enableCRLDP=true"]
    command = [
        sites.folders.java,
        f"-Xms{heap_mib}m -Xmx{heap_mib}m",
        # A process that is out of memory ends and is restarted: a process that works partly is worse than one that is down.
        *("-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"),
        *sites.kafka.java_options,
        *(revocation if sites.tls and sites.kafka.check_revocation else []),
        f"-Dlog4j2.configurationFile={config}/log4j2.xml",
        f"-cp {sites.folders.kafka}/libs/*",
        f"kafka.Kafka {config}/{role}.properties",
    ]
    after = " kafka-controller.service" if role == "broker" else ""
    return f"""\
{_head(f"Kafka {role} {name}", f"kafka-{role}", after)}AssertPathExists={folder}/meta.properties

[Service]
Type=exec
User=kafka
Group=kafka
ExecStart={" ".join(command)}
Restart=on-failure
RestartSec=5
# Java's exit code after SIGTERM. A broker hands its partitions over first, which may take a while.
SuccessExitStatus=143
TimeoutStopSec=300
LimitNOFILE=262144
LimitCORE=0
ReadWritePaths={folder}
{_SANDBOX}# Java compiles while it runs, so memory that can be written and executed stays allowed.

[Install]
WantedBy=multi-user.target
"""


def _head(description: str, name: str, after: str = "") -> str:
    # systemd stops units in the reverse order of After=: on a shared host, a worker answers its admitted requests before the log stops.
    # StartLimitIntervalSec=0: systemd never stops trying, since after a power cut the network may come up late.
    return f"""\
# Rendered from the sites file: change that one, and render again. Own settings: systemctl edit {name}
[Unit]
Description={description.replace("%", "%%")}
Wants=network-online.target
After=network-online.target time-sync.target{after}
StartLimitIntervalSec=0
"""


def sysusers(names: set[str]) -> str:
    """Renders the users of a host, for systemd-sysusers."""
    return "".join(f'u {name} - "{name.capitalize()} service" /nonexistent /usr/sbin/nologin\n' for name in sorted(names))


def tmpfiles(folders: dict[str, str]) -> str:
    """Renders the data folders of a host and their owners, for systemd-tmpfiles."""
    return "".join(f"d {folder} 0700 {owner} {owner} -\n" for folder, owner in folders.items())
