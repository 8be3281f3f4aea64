"""`notary serve`: runs one worker until SIGTERM or SIGINT. On SIGHUP it reads certificate, parties and log level again."""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import uvloop

from notary.acceptor import AcceptorPool
from notary.cli import drop_what_cannot_be_written, json_line
from notary.config import SETTINGS, Config, load
from notary.exit_codes import EXIT_COULD_NOT, EXIT_DONE
from notary.http.app import App
from notary.http.listener import bind
from notary.http.server import Server
from notary.http.settings import parse_listen
from notary.logs import set_level, set_up_logging
from notary.loop_watch import LoopWatch
from notary.memory import bound_memory, collect_garbage_rarely
from notary.open_log import identify, open_log
from notary.service import serve_until
from notary.snapshots.schedule import restore_at_start
from notary.tls import Certificates, expiry_s
from notary.worker import Worker
from ordering.errors import ConfigurationError, Fatal, NotaryError, NotReady

logger = logging.getLogger("notary.serve")

Made = TypeVar("Made")

BIND_RETRY_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary serve`."""
    parser.add_argument("--config", required=True, type=Path, metavar="F", help="notary.toml, as `notary init` makes it")
    name = "this worker's name, unique among the workers (default: worker.name, else the host's name)"
    parser.add_argument("--name", metavar="W", help=name)
    parser.add_argument("--listen", metavar="HOST:PORT", help="where to serve HTTP; port 0 takes a free one (default: http.listen)")
    clock = "confirm, once, that this machine's clock is right, although it is far from the last time in the log"
    parser.add_argument("--accept-clock", action="store_true", help=clock)
    parser.add_argument("--json", action="store_true", help="print the ready line as JSON, and log in JSON lines")
    parser.add_argument("--log-format", choices=("text", "json"), help="of the log lines (default: worker.log_format)")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="of stderr (default: worker.log_level)")


def run(arguments: argparse.Namespace) -> int:
    """Run the worker. Returns 0 after a signal, 2 after a fatal error."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the service runs, a SIGHUP must not end the process
    as_json = _asked_format(arguments, os.environ.get("NOTARY_WORKER_LOG_FORMAT")) == "json"
    try:
        if as_json:
            set_up_logging("info", as_json=True)  # for errors in the configuration
        config = _configured(arguments)
        as_json = config.logging.log_format == "json"
        set_up_logging(config.logging.log_level, as_json=as_json)
        collect_garbage_rarely()
        bound_memory()
        return uvloop.run(_serve(config, arguments))
    except Exception as problem:
        if not as_json:
            raise  # `notary.cli` prints it
        if isinstance(problem, Fatal):
            logger.error("%s code=%s", problem, problem.code)
        elif isinstance(problem, NotaryError | OSError):
            logger.error("%s", problem)
        else:
            logger.error("ended by an unexpected error: %r", problem, exc_info=problem)
        return EXIT_COULD_NOT


def _asked_format(arguments: argparse.Namespace, otherwise: str | None) -> str | None:
    return arguments.log_format or ("json" if arguments.json else otherwise)


def _configured(arguments: argparse.Namespace) -> Config:
    """Returns the configuration from the present file, environment and flags. Raises `ConfigurationError`."""
    flags = {
        "worker.name": arguments.name,
        "http.listen": arguments.listen,
        "worker.log_level": arguments.log_level,
        "worker.log_format": _asked_format(arguments, None),
    }
    config = load(arguments.config, flags)
    driver = msgspec.structs.replace(config.driver, clock_accepted=arguments.accept_clock)
    return msgspec.structs.replace(config, driver=driver)


async def _serve(config: Config, arguments: argparse.Namespace) -> int:
    stop = asyncio.Event()
    _end_on_signals(stop)
    loop_watch = LoopWatch()
    loop_watch.start()
    http = config.http
    certificates = None if config.tls_files is None else Certificates(config.tls_files)
    app = App(health=not http.health_listen)
    apps, makers = [app], [lambda: _service(config, app, certificates)]
    if http.health_listen:
        apps.append(App(service=False))
        # The health port has no TLS: probes and Prometheus are inside the network, and probes must work with an expired certificate.
        makers.append(lambda: _server(config, apps[1], http.health_listen))
    servers = await bound(makers, stop)
    if stop.is_set():
        for server in servers:
            await server.stop(0.0)
        return EXIT_DONE
    service = servers[0]
    read_again = _ReadAgain(arguments, config, certificates, service)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, read_again)
    for server in servers:
        await server.start()

    def restoring() -> None:
        for each in apps:
            each.starting("a snapshot is being restored")

    async def start() -> Worker:
        read_again.worker = await _start(config, certificates, restoring, stop)
        read_again.worker.metrics.watch_loop(loop_watch)
        return read_again.worker

    async def print_when_ready(worker: Worker) -> None:
        while worker.not_ready() is not None:  # noqa: ASYNC110 - three parts set it; only one loop polls
            await asyncio.sleep(0.01)
        app.admission_changed()
        await asyncio.sleep(0)  # so that acceptor processes know that the worker is ready before the ready line is printed
        _print_ready(worker, service.url, as_json=arguments.json)

    try:
        ending = await serve_until(apps, start, stop, print_when_ready)
    finally:
        # Answers are sent before the port closes; meanwhile probes get `shutting down`.
        for server in servers:
            await server.stop(5.0)
    return EXIT_COULD_NOT if ending.failed else EXIT_DONE


async def bound(makers: Sequence[Callable[[], Made]], stop: asyncio.Event) -> list[Made]:
    """Returns the servers that `makers` make, which bind their ports. If `stop` is set first, some may be missing.

    When a machine starts, its network may come up after this process. While a maker raises `NotReady`, since the address to listen on is
    not there yet, it is called again every `BIND_RETRY_S`.
    """
    servers: list[Made] = []
    reported = ""
    while len(servers) < len(makers) and not stop.is_set():
        try:
            servers.append(makers[len(servers)]())
        except NotReady as problem:
            if str(problem) != reported:
                reported = str(problem)
                logger.warning("%s; trying again every %g s", problem, BIND_RETRY_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), BIND_RETRY_S)
    return servers


def _end_on_signals(stop: asyncio.Event) -> None:
    """On SIGTERM or SIGINT, end the worker after its answers are sent. On a second signal, end it at once."""
    loop = asyncio.get_running_loop()
    ending = (signal.SIGTERM, signal.SIGINT)

    def end() -> None:
        stop.set()
        for number in ending:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)  # the default handler works even when the event loop is blocked

    for number in ending:
        loop.add_signal_handler(number, end)


class _ReadAgain:
    """SIGHUP handler: reads certificates, parties and the log level again. All other settings need a restart."""

    def __init__(
        self, arguments: argparse.Namespace, config: Config, certificates: Certificates | None, service: Server | AcceptorPool
    ) -> None:
        self.worker: Worker | None = None
        self._arguments = arguments
        self._config = config
        self._certificates = certificates
        self._service = service
        self._log_level: str = config.logging.log_level

    def __call__(self) -> None:
        """Read the files now. A file that cannot be used is logged, and the earlier content stays in use."""
        logger.info("SIGHUP: reading certificates, parties and the log level again")
        try:
            config = _configured(self._arguments)
        except ConfigurationError as problem:
            logger.warning("the new log level is rejected, the present one stays in use: %s", problem)
        else:
            self._log_level = config.logging.log_level
            set_level(self._log_level)
            for name, setting in SETTINGS.items():
                if name != "worker.log_level" and setting.value(self._config) != setting.value(config):
                    logger.warning("a changed setting takes effect at the next start only setting=%s", name)
        if self.worker is not None:
            self.worker.parties.check_now()
        if self._certificates is not None:
            self._certificates.read_again()
        if isinstance(self._service, AcceptorPool):
            self._service.read_again(self._log_level)


async def _start(config: Config, certificates: Certificates | None, restoring: Callable[[], None], stop: asyncio.Event) -> Worker:
    opened = await open_log(config)
    try:
        _, log_identity = await identify(config, opened)
        await _unless_stopped(restore_at_start(config, log_identity, restoring), stop)
        worker = await Worker.start(config, opened)
    except BaseException:
        await opened.close()
        raise
    if certificates is not None:
        worker.metrics.watch_tls(certificates)
    if config.log.kind == "kafka":
        if config.log.cert_file and expiry_s(config.path(config.log.cert_file)) is None:
            logger.warning("the expiry of log.cert_file cannot be read, so no metric has it file=%s", config.log.cert_file)
        if (ends_s := config.log_certificates_end_s) is not None:
            worker.metrics.watch_log_certificate(ends_s)
    return worker


async def _unless_stopped(work: Coroutine[None, None, None], stop: asyncio.Event) -> None:
    """Do the work. Raises `NotReady` if a signal stops the process first: an empty index made now would prevent the next restore."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise NotReady("the worker was stopped before it had an index")
        await working
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.wait([working, stopping])


def _service(config: Config, app: App, certificates: Certificates | None) -> Server | AcceptorPool:
    if not config.http.acceptor_processes:
        return _server(config, app, config.http.listen, certificates)
    logs = config.logging
    return AcceptorPool(config, app, log_level=logs.log_level, log_json=logs.log_format == "json", certificates=certificates)


def _server(config: Config, app: App, listen: str, certificates: Certificates | None = None) -> Server:
    server = Server(app, bind(*parse_listen(listen)), settings=config.http, certificates=certificates, duty=app.duty)
    server.lanes.is_backlogged = lambda client: app.worker is not None and app.worker.gate.is_backlogged(client.network, client.parties)
    server.lanes.part_of = app.waiting_lanes.part_of
    server.places.weight_of = lambda party: 1 if app.worker is None else app.worker.gate.weight_of(party)
    return server


def _print_ready(worker: Worker, url: str, *, as_json: bool) -> None:
    line = f"notary worker {worker.config.worker.name} ready at {url}"
    try:
        print(json_line({"worker": worker.config.worker.name, "url": url}) if as_json else line, flush=True)
    except OSError as problem:
        logger.warning("the ready line cannot be written: %s", problem)
        drop_what_cannot_be_written()
