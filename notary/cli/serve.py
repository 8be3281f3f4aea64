"""`notary serve`: one worker, until SIGTERM or SIGINT."""

import argparse
import asyncio
import gc
import json
import logging
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from notary.cli import EXIT_COULD_NOT, EXIT_DONE, drop_what_cannot_be_written
from notary.config import Config, load, parse_listen
from notary.http import App, Server, bind
from notary.intake import Intake
from notary.service import serve_until
from notary.worker import Worker, open_log

log = logging.getLogger("notary.serve")

GARBAGE_OBJECTS = 10_000
"""Python looks for cycles when there are so many more containers than before. Its own 700 cost a worker a twentieth of its time: tens of
thousands of submissions that wait are no garbage, and nearly nothing here is in a cycle."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `notary serve`."""
    parser.add_argument("--config", required=True, type=Path, metavar="F", help="notary.toml, as `notary init` makes it")
    parser.add_argument("--name", metavar="W", help="this worker's name, unique among the workers (default: the host's name)")
    parser.add_argument("--listen", metavar="HOST:PORT", help="where to serve HTTP; port 0 takes a free one")
    parser.add_argument(
        "--accept-clock",
        action="store_true",
        help="this machine's clock is right, although it is far from the last time in the log: say so once, after looking",
    )
    parser.add_argument("--json", action="store_true", help="print the ready line as JSON, and log in JSON lines")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"), help="what goes to stderr")


def run(arguments: argparse.Namespace) -> int:
    """Serve; 0 after a signal, 2 when it cannot go on."""
    flags = {"worker.name": arguments.name, "http.listen": arguments.listen}
    config = load(arguments.config, {key: value for key, value in flags.items() if value is not None})
    config = msgspec.structs.replace(config, clock_accepted=arguments.accept_clock)
    set_up_logging(arguments.log_level, as_json=arguments.json)
    gc.freeze()  # modules and what they hold stay for ever
    gc.set_threshold(GARBAGE_OBJECTS)
    return uvloop.run(_serve(config, log_level=arguments.log_level, as_json=arguments.json))


def set_up_logging(level: str, *, as_json: bool) -> None:
    """Log lines to stderr: time, level, logger, fragment and fields; or the same as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # aiokafka says at INFO and WARNING what our own lines say better, many times a second while a broker is away.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL if level != "debug" else logging.DEBUG)
    # Nor does anyone outside get to fill our log by sending what is not HTTP.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)


async def _serve(config: Config, *, log_level: str, as_json: bool) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    http = config.http
    app = App(health=not http.health_listen)
    servers: list[Server | Intake] = [
        Intake(config, app, log_level=log_level, log_json=as_json) if http.intake_processes else _server(config, app, http.listen)
    ]
    apps = [app]
    if http.health_listen:
        apps.append(App(service=False))
        servers.append(_server(config, apps[1], http.health_listen))
    for server in servers:
        await server.start()

    async def say_when_ready(worker: Worker) -> None:
        while worker.not_ready() is not None:  # noqa: ASYNC110 - three parts have a say in it, and it is asked once in a worker's life
            await asyncio.sleep(0.01)
        app.taking_changed()
        await asyncio.sleep(0)  # intake processes, if there are any, know it first
        _say_ready(worker, servers[0].url, as_json=as_json)

    try:
        ending = await serve_until(apps, lambda: _start(config), stop, say_when_ready)
    finally:
        # Answers leave before the port closes; a probe hears `shutting down` meanwhile.
        for server in servers:
            await server.stop(5.0)
    return EXIT_COULD_NOT if ending.failed else EXIT_DONE


async def _start(config: Config) -> Worker:
    opened = await open_log(config)
    try:
        return await Worker.start(config, opened)
    except BaseException:
        await opened.close()
        raise


def _server(config: Config, app: App, listen: str) -> Server:
    return Server(
        app,
        bind(*parse_listen(listen)),
        connections_max=config.http.connections_max,
        head_s_max=config.http.head_ms_max / 1000,
        keep_alive_s=config.http.keep_alive_ms / 1000,
        refusal=app.refusal,
    )


def _say_ready(worker: Worker, url: str, *, as_json: bool) -> None:
    line = f"notary worker {worker.config.worker.name} ready at {url}"
    try:
        print(json.dumps({"worker": worker.config.worker.name, "url": url}) if as_json else line, flush=True)
    except OSError as problem:
        log.warning("the ready line cannot be written: %s", problem)
        drop_what_cannot_be_written()


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
