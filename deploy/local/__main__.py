"""The command line: `python -P -m deploy.local fetch|pin|up|status|down|start|stop|kill|pause|resume`.

Exits with 0 on success, 1 if `status` finds no cluster or one that does not serve, and 2 on failure; stderr has the
reason.
"""

import argparse
import logging
import sys
import time
from dataclasses import asdict
from pathlib import Path

import orjson

from deploy.local.cluster import Cluster
from deploy.local.errors import CannotRun
from deploy.local.jars import TOOLS, cache_folder, fetch_jars, pin
from deploy.local.java import find_java
from deploy.local.runtime import prepare
from deploy.local.settings import ClusterSettings

DONE, NO, COULD_NOT = 0, 1, 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command that `arguments` name, by default the process's own; return the exit code."""
    # This program reports once that a broker does not reply yet. The client library would log each attempt.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.command == "fetch":
            fetch_jars(prepare().java, TOOLS)
            return DONE
        if chosen.command == "pin":
            pin(find_java())
            return DONE
        if chosen.command == "up":
            return _up(chosen)
        if chosen.command == "status":
            return _status(chosen)
        if chosen.command == "down":
            return _down(chosen)
        return _one_broker(chosen)
    except CannotRun as error:
        print(f"deploy.local: {error}", file=sys.stderr)
        return COULD_NOT
    except KeyboardInterrupt:
        folder = vars(chosen).get("dir")  # None for a command that has no cluster
        print(f"deploy.local: interrupted{f'; `status` says what runs in {folder}' if folder else ''}", file=sys.stderr)
        return COULD_NOT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -P -m deploy.local", description="Real Kafka brokers on this machine's loopback.")
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--dir", type=Path, default=cache_folder() / "cluster", help="the cluster's folder (default: .cache/cluster)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    commands.add_parser("fetch", help="find a Java and fetch Kafka's jars, as `up` does when they are not there, and its tools")

    commands.add_parser("pin", help="after a change of deploy/kafka/ivy.xml: fetch all jars, and write their hashes into jars.sha256")

    up = commands.add_parser("up", parents=[where], help="start the cluster, new or again; prints its bootstrap servers")
    up.add_argument(
        "--brokers",
        type=int,
        metavar="N",
        help=f"how many (default {ClusterSettings.brokers}; a cluster that is there keeps its number)",
    )

    status = commands.add_parser("status", parents=[where], help="say what runs; exits 1 unless the cluster serves")
    status.add_argument("--json", action="store_true", help="print it as JSON")

    down = commands.add_parser("down", parents=[where], help="end all brokers and remove the folder")
    down.add_argument("--keep-data", action="store_true", help="end them in order and keep the folder: `up` goes on from there")

    for command, what in (
        ("start", "start broker N again, on the same ports and data, and wait until the cluster serves"),
        ("stop", "end broker N in order (SIGTERM)"),
        ("kill", "end broker N as a crash would (SIGKILL)"),
        ("pause", "freeze broker N (SIGSTOP)"),
        ("resume", "let broker N go on (SIGCONT)"),
    ):
        commands.add_parser(command, parents=[where], help=what).add_argument("broker", type=int, metavar="N")
    return parser


def _up(chosen: argparse.Namespace) -> int:
    began = time.monotonic()
    if Cluster.exists(chosen.dir):
        cluster = _there_already(chosen)
    else:
        cluster = Cluster.create(chosen.dir, ClusterSettings.brokers if chosen.brokers is None else chosen.brokers)
    cluster.up()
    brokers = len(cluster.state.brokers)
    print(f"{brokers} brokers serve after {time.monotonic() - began:.1f} s; data and logs in {cluster.directory}", file=sys.stderr)
    print(cluster.bootstrap)
    return DONE


def _there_already(chosen: argparse.Namespace) -> Cluster:
    cluster = Cluster.open(chosen.dir)
    state = cluster.state
    if chosen.brokers not in (None, len(state.brokers)):
        raise CannotRun(
            f"the cluster in {cluster.directory} has {len(state.brokers)} brokers, not {chosen.brokers}: take it `down` first, or use"
            " another --dir"
        )
    died = [str(broker.id) for broker in state.brokers if broker.condition == "died"]
    if died:
        print(
            f"broker {', '.join(died)} had died (or the machine was restarted): starting again with the data that is there",
            file=sys.stderr,
        )
    return cluster


def _status(chosen: argparse.Namespace) -> int:
    if not Cluster.exists(chosen.dir):
        print('{"serving":false,"reason":"no cluster"}' if chosen.json else f"no cluster in {chosen.dir}")
        return NO
    status = Cluster.open(chosen.dir).status()
    if chosen.json:
        print(orjson.dumps(asdict(status)).decode())
        return DONE if status.serving else NO
    print("broker  port   pid      condition  registered")
    for broker in status.brokers:
        pid = "-" if broker.pid is None else str(broker.pid)
        print(f"{broker.id:<7} {broker.port:<6} {pid:<8} {broker.condition:<10} {'yes' if broker.registered else 'no'}")
    print(
        f"{status.topics} topics, {status.partitions} partitions, {status.offline_partitions} offline, "
        f"{status.unwritable_partitions} with too few in-sync replicas"
    )
    print("serving" if status.serving else f"not serving: {status.reason}")
    if all(broker.condition in ("stopped", "died") for broker in status.brokers):
        print("`up` starts it again with its data, `down` removes it")
    return DONE if status.serving else NO


def _down(chosen: argparse.Namespace) -> int:
    if not Cluster.exists(chosen.dir):
        print(f"no cluster in {chosen.dir}: nothing to take down", file=sys.stderr)
        return DONE
    Cluster.open(chosen.dir).down(keep_data=chosen.keep_data)
    return DONE


def _one_broker(chosen: argparse.Namespace) -> int:
    cluster = Cluster.open(chosen.dir)
    if chosen.command == "start":
        cluster.start(chosen.broker)
        cluster.wait_until_serving()
    else:
        {"stop": cluster.stop, "kill": cluster.kill, "pause": cluster.pause, "resume": cluster.resume}[chosen.command](chosen.broker)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
