"""When all places are taken, new connections of addresses and parties with few take those of addresses and parties with many."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from notary.http import lanes, places
from notary.http.machine import ConnectionState
from notary.http.places import Places
from notary.http.server import Server
from notary.http.settings import HttpSettings
from tests.clients.load import until
from tests.notary.http.test_connection import CHUNKS_END, GET, LAST, Scripted, address_of, connected, head, served, turns
from tests.notary.http.test_server import is_served, received, secured, silent


@asynccontextmanager
async def full_server(
    connections_max: int, app: Scripted | None = None
) -> AsyncIterator[tuple[Server, Callable[[str], Awaitable[socket.socket]]]]:
    """Yields a server with this limit, and a function that connects to it from an address until the end of the block."""
    async with served(app or Scripted(), settings=HttpSettings(connections_max=connections_max)) as full, AsyncExitStack() as stack:

        async def connect(source: str) -> socket.socket:
            return stack.enter_context(await connected(full, source))

        yield full, connect


async def test_an_address_with_few_connections_takes_the_place_of_one_with_many() -> None:
    """While all connections are in use, the oldest one of the address with the most ends for one of an address with fewer."""
    async with full_server(4) as (full, connect):
        many = [await connect("127.0.0.1") for _ in range(4)]
        await turns()
        few = [await connect("127.0.0.2") for _ in range(3)]
        assert [await is_served(client) for client in few] == [True, True, False]
        for client in many[:2]:
            assert b"most of them from your address" in await received(client)
        assert [await is_served(client) for client in many[2:]] == [True, True]
        assert len(full.connections) == 4


async def test_authenticated_clients_and_calls_that_are_decided_give_no_place() -> None:
    """The connection of an admitted submission stays, and so does one whose call is being decided; an idle one ends without a word."""
    app = Scripted()
    async with full_server(3, app) as (_, connect):
        authenticated, decided, idle = [await connect("127.0.0.1") for _ in range(3)]
        assert await is_served(authenticated)
        await asyncio.get_running_loop().sock_sendall(decided, head("/read") + CHUNKS_END)
        await turns()
        assert await is_served(idle)
        app.calls[0].parties.add(b"O=Proven")
        other = await connect("127.0.0.2")
        assert await received(idle) == b""
        assert await is_served(other)
        app.calls[1].answer((200, [], b"decided"))
        assert b"decided" in await received(decided)
        assert await is_served(authenticated)


async def test_clients_that_do_not_close_their_half_give_place() -> None:
    """If they kept their places, calls with `Connection: close` could keep new clients out."""
    async with full_server(2) as (full, connect):
        for _ in range(2):
            assert await is_served(await connect("127.0.0.1"), LAST)
        assert await is_served(await connect("127.0.0.2"))
        await turns()
        assert len(full.connections) == 2


@pytest.mark.parametrize("call", [LAST, b""], ids=["closing", "no call"])
async def test_clients_that_do_not_answer_the_end_of_tls_give_place(tmp_path: Path, call: bytes) -> None:
    """Their connections are no longer counted, and end `goodbye_s` later. The server's timer continues."""
    server, context = await secured(tmp_path, HttpSettings(connections_max=2))
    with await silent(server, context, call), await silent(server, context, call):
        await until(lambda: len(server.connections) == 2)
        await turns()
        assert [connection.state is ConnectionState.CLOSING for connection in server.connections] == [bool(call)] * 2
        assert server.places._make_place(0)
        for connection in server.connections:
            connection.postpone(-server.settings.goodbye_s - 0.1)
        server._check()
        await turns()
        assert len(server.connections) == 1
    await server.stop(1)


async def test_clients_that_keep_their_places_shield_no_others() -> None:
    """The address with the most connections may be that of a proxy, whose clients are authenticated. Then another address gives a place."""
    app = Scripted()
    async with full_server(6, app) as (full, connect):
        for _ in range(3):
            assert await is_served(await connect("127.0.0.1"))
            app.calls[-1].parties.add(b"O=Proven")
        for _ in range(3):
            await connect("127.0.0.2")
        await turns()
        assert await is_served(await connect("127.0.0.3"))
        assert len(full.connections) == 6


async def full_of_parties(connect: Callable[[str], Awaitable[socket.socket]], app: Scripted, parties: str) -> list[socket.socket]:
    """Connect once for each letter, the name of a party. Each has two addresses, and each connection has an admitted submission."""
    clients = []
    for number, party in enumerate(parties):
        clients.append(await connect(f"127.0.{ord(party)}.{1 + number % 2}"))
        assert await is_served(clients[-1])
        app.calls[-1].parties.add(party.encode())
    return clients


async def test_a_party_keeps_seven_eighths_of_the_places() -> None:
    """A party with two addresses has all places. New clients get an eighth of them, and no more from any number of addresses."""
    app = Scripted()
    async with full_server(16, app) as (full, connect):
        of_party = await full_of_parties(connect, app, "P" * 16)
        assert not await is_served(await connect("127.0.80.1")), "its address has more than an eighth"
        new = [await connect(f"127.0.0.{number}") for number in range(2, 6)]
        assert [await is_served(client) for client in new] == [True, True, False, False]
        ended = of_party[0], of_party[2]  # the oldest of an address
        assert [await received(client) for client in ended] == [b"", b""]
        assert all([await is_served(client) for client in of_party if client not in ended])
        assert len(full.connections) == 16


async def test_the_party_with_the_most_by_weight_gives_places() -> None:
    """Its connections between two calls end first. A party with no more than its share keeps all of its own."""
    app = Scripted()
    async with full_server(16, app) as (full, connect):
        full.places.weight_of = lambda party: 3 if party == b"P" else 1
        clients = await full_of_parties(connect, app, "PPPPPPPPPPPQQQQQ")
        first, idle = clients[11], clients[13]
        await asyncio.get_running_loop().sock_sendall(first, head("/read"))
        await turns()
        assert await is_served(await connect("127.0.0.2"))
        assert await received(idle) == b""
        app.calls[-1].parties.add(b"R")
        assert await is_served(await connect("127.0.0.3"))
        assert [await is_served(client) for client in clients[:11]].count(True) == 11
        assert app.heard == []


async def test_a_body_that_loses_its_place_gets_the_reason() -> None:
    """All connections of the party have a call whose body still comes. It may be sent again later."""
    app = Scripted()
    async with full_server(8, app) as (_, connect):
        of_party = await full_of_parties(connect, app, "P" * 8)
        for client in of_party:
            await asyncio.get_running_loop().sock_sendall(client, head("/read"))
        await turns()
        assert await is_served(await connect("127.0.0.2"))
        answer = await received(of_party[0])
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in answer
        assert b"your party has more than its share" in answer


async def test_a_decision_under_way_is_the_last_answer_of_a_connection_that_gives_its_place() -> None:
    """Else a party whose every connection has a call under way would keep all others out. Only an eighth may end so at a time."""
    app = Scripted()
    async with full_server(8, app) as (full, connect):
        of_party = await full_of_parties(connect, app, "P" * 8)
        for number, client in enumerate(of_party):
            await asyncio.get_running_loop().sock_sendall(client, head(f"/read/{number}") + CHUNKS_END + GET)
        await turns()
        decided = {call.path: call for call in app.calls}
        assert await is_served(await connect("127.0.0.2"))
        app.calls[-1].parties.add(b"Q")
        await asyncio.sleep(2 * places.PARTIES_S)
        assert not await is_served(await connect("127.0.0.3"))
        decided["/read/0"].answer((200, [], b"decided"))
        answer = await received(of_party[0])
        assert b"connection: close" in answer
        assert answer.endswith(b"decided"), "the call behind it is dropped"
        assert await received(of_party[0]) == b""
        of_party[0].close()
        await until(lambda: len(full.connections) == 8)
        assert await is_served(await connect("127.0.0.3"))
        decided["/read/1"].answer((200, [], b"decided"))
        assert b"connection: close" not in await received(of_party[1])


async def test_a_connection_that_has_closed_gives_no_second_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the list of the party's connections until it closes."""
    monkeypatch.setattr(places, "PARTIES_S", 60.0)
    app = Scripted()
    async with full_server(24, app) as (full, connect):
        of_party = await full_of_parties(connect, app, "P" * 24)
        assert await is_served(await connect("127.0.0.2"))
        of_party[2].close()
        await until(lambda: full.places.taken == 23)
        assert [await is_served(await connect(f"127.0.0.{number}")) for number in (3, 4)] == [True, True]
        assert full.places.taken == 24
        await until(lambda: len(full.connections) == 24)


async def test_strangers_that_come_and_go_cost_one_look_at_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers have their eighth; one leaves, another comes, and one more is rejected, again and again. A look takes a millisecond."""
    monkeypatch.setattr(places, "PARTIES_S", 60.0)
    looks: list[Places] = []
    look = Places._connections_of_parties
    app = Scripted()
    async with full_server(24, app) as (full, connect):
        of_party = await full_of_parties(connect, app, "P" * 24)
        strangers = [await connect(f"127.0.0.{number}") for number in range(2, 5)]
        assert all([await is_served(client) for client in strangers])
        for given in of_party[0], of_party[2], of_party[4]:
            assert await received(given) == b""
            given.close()
        await until(lambda: len(full.connections) == 24)
        monkeypatch.setattr(Places, "_connections_of_parties", lambda counted: looks.append(counted) or look(counted))
        for number in range(5, 10):
            assert not await is_served(await connect("127.0.1.1"))
            strangers.pop().close()
            await until(lambda: full.places.taken == 23)
            strangers.append(await connect(f"127.0.0.{number}"))
            assert await is_served(strangers[-1])
        assert looks == [full.places]


@pytest.mark.parametrize("waits", ["in its lane", "for its handshake"])
async def test_clients_that_do_not_shake_hands_give_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: str) -> None:
    """Silent connections that are not made yet hold no places against another address, which also counts them no longer."""
    if waits == "in its lane":
        may_go, wait = lanes.ClientLanes.may_go, lanes.ClientLanes.wait

        def never_may_go(self: lanes.ClientLanes, client: lanes.ClientKey, *, begun: bool = False) -> bool:
            return client.network != "127.0.0.2" and may_go(self, client, begun=begun)

        def wait_for_ever(
            self: lanes.ClientLanes, client: lanes.ClientKey, do: Callable[[float], None], *, size: int = 0, begun: bool = False
        ) -> None:
            if client.network != "127.0.0.2":
                wait(self, client, do, size=size, begun=begun)

        monkeypatch.setattr(lanes.ClientLanes, "may_go", never_may_go)
        monkeypatch.setattr(lanes.ClientLanes, "wait", wait_for_ever)
    server, context = await secured(tmp_path, HttpSettings(connections_max=4))
    async with AsyncExitStack() as stack:
        for _ in range(4):
            stack.enter_context(await connected(server, "127.0.0.2"))
        await until(lambda: server.places.taken >= 4, 0)
        reader, writer = await asyncio.open_connection(*address_of(server), ssl=context, server_hostname="localhost")
        writer.write(b"GET /livez HTTP/1.1\r\nHost: n\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert server.places.taken == 4
        assert server.places._addresses["127.0.0.2"].count == len(server.places._addresses["127.0.0.2"].accepted) == 3
        writer.close()
    await server.stop(1)
    assert not server.places._addresses
    assert server.places.taken == 0


async def test_a_newcomer_of_the_largest_address_shields_nobody() -> None:
    """It is rejected itself, and the next newcomer of the same turn still gets a place."""
    async with full_server(4) as (full, connect):
        for _ in range(4):
            await connect("127.0.0.2")
        await turns()
        assert full.places.take("127.0.0.2") is not None
        assert full.places.take("127.0.0.9") is None
        full.places.release("127.0.0.9")


async def test_each_address_with_more_connections_gives_places_in_one_turn() -> None:
    """The order of the addresses is kept for a turn, in which several connections may be accepted."""
    async with full_server(8) as (full, connect):
        for source in ["127.0.0.2", "127.0.0.3"] * 4:
            await connect(source)
        await turns()
        assert [full.places.take(f"10.0.0.{number}") for number in range(6)] == [None] * 6
        assert full.places.taken == 8
        for number in range(6):
            full.places.release(f"10.0.0.{number}")


async def test_a_surplus_connection_costs_no_look_at_every_address() -> None:
    """Each address has one connection, so none gives a place. Later connections of the same turn are rejected at once."""
    looks = 0

    class Watched(places._Address):
        @property
        def count(self) -> int:
            nonlocal looks
            looks += 1
            return 1

        @count.setter
        def count(self, count: int) -> None:
            pass

    async with full_server(500) as (full, _):
        full.places._addresses, full.places.taken = {f"10.0.{number}": Watched() for number in range(500)}, 500
        assert full.places.take("10.1.1.1") is not None
        looks = 0
        assert full.places.take("10.1.1.2") is not None
        assert looks <= 2


async def test_an_address_that_grows_gives_places_in_the_same_turn() -> None:
    """It has taken a place in this turn, and has the most connections now."""
    async with full_server(4) as (full, connect):
        for source in ("127.0.0.2", "127.0.0.2", "127.0.0.2", "127.0.0.3"):
            await connect(source)
        await turns()
        newcomers = ["127.0.0.3", "10.0.0.1", "10.0.0.2"]
        assert [full.places.take(network) for network in newcomers] == [None] * 3
        assert full.places.take("10.0.0.3") is not None
        assert {network: counted.count for network, counted in full.places._addresses.items()} == dict.fromkeys(
            ["127.0.0.2", *newcomers], 1
        )
        await turns()
        assert full.places._largest is None, "it grows with each connection"
        for network in newcomers:
            full.places.release(network)
