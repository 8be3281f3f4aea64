"""One acceptor process: `python -P -m notary.acceptor SETTINGS LISTENING LINK`, which its worker alone starts.

It lives as long as its link. The worker starts it with SIGINT, SIGTERM and SIGHUP blocked, since these are for the worker alone: the worker
first answers the admitted submissions, and sends its processes a message when they are to end or to read files again.
"""

import asyncio
import logging
import os
import socket
import sys
from pathlib import Path

import msgspec
import uvloop

from notary.acceptor.app import AcceptorApp
from notary.acceptor.link import Link
from notary.acceptor.messages import AcceptorSettings, Down, End, Ping, ReadAgain, Serving, Up
from notary.http.listener import BACKLOG
from notary.http.server import Server
from notary.logs import set_level, set_up_logging
from notary.memory import collect_garbage_rarely
from notary.parties import Parties
from notary.tls import Certificates
from ordering.errors import ConfigurationError

logger = logging.getLogger("notary.acceptor")


async def run(settings: AcceptorSettings, listening: socket.socket, linked: socket.socket) -> None:
    """Serve until the worker ends it; the process also ends with `linked`."""
    loop = asyncio.get_running_loop()
    parties = Parties(Path(settings.parties_file))
    certificates = None if settings.tls is None else Certificates(settings.tls)
    ending: asyncio.Future[End] = loop.create_future()

    def take(message: Down) -> None:
        if isinstance(message, End):
            ending.set_result(message)
        elif isinstance(message, ReadAgain):
            set_level(message.log_level)
            parties.check_now()
            if certificates is not None:
                certificates.read_again()
        elif isinstance(message, Ping):
            link.send(Serving())
        else:
            app.handle_message(message)

    # Without the link no worker can answer: exit at once. Open connections get no more answers, and clients may retry their calls (R7).
    link: Link[Down, Up] = Link(Down, take, lambda: os._exit(0 if ending.done() else 1))
    app = AcceptorApp(settings, parties, link)
    if certificates is not None:
        certificates.when_handshake_failed = app.handshake_failed
    await loop.connect_accepted_socket(lambda: link, linked)
    server = Server(app, listening, settings=settings.http, certificates=certificates, duty=app.duty)
    server.lanes.is_backlogged = lambda client: app.gate.is_backlogged(client.network, client.parties)
    server.lanes.part_of = app.waiting_lanes.part_of
    server.places.weight_of = app.gate.weight_of
    # While the link is full, read no calls from the connections.
    link.pause, link.go_on = server.pause, server.go_on
    # If the process before this one could not serve, the socket does not listen yet, and is bound without this option. Connections inherit
    # it: without it, those that are closing would keep the port from the next worker for a minute.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.listen(BACKLOG)
    await server.start()
    link.send(Serving())
    following = loop.create_task(parties.follow())
    end = await ending
    following.cancel()
    await server.stop(end.seconds_max)
    app.report()
    link.close()
    await loop.create_future()


def main(given: list[str]) -> int:
    """Run; returns an exit code only if it never serves."""
    settings = msgspec.json.decode(given[0], type=AcceptorSettings)
    set_up_logging(settings.log_level, as_json=settings.log_json)
    collect_garbage_rarely()
    try:
        with socket.socket(fileno=int(given[1])) as listening, socket.socket(fileno=int(given[2])) as linked:
            uvloop.run(run(settings, listening, linked))
    except ConfigurationError as problem:
        logger.error("acceptor process %s cannot serve: %s", settings.process, problem)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
