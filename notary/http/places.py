"""The places for connections: counted by address and by party, and taken from those with the most when all are in use."""

import asyncio
import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from notary.http.call import Answer
from notary.http.connection import Connection
from notary.http.lanes import Lane
from notary.http.machine import GIVES_WAY
from notary.http.problems import problem_of
from notary.http.settings import HttpSettings
from ordering.errors import Overloaded

NEW_CLIENTS_PART: Final = 8
"""One in this many of all places, rounded up, is for connections without an admitted submission, before those of parties. As many
connections that end with the answer to their call may be open beyond all places."""
PARTIES_S: Final = 0.05
"""The time for which a list of all connections of parties is used. To make it of 2,000 connections takes about a millisecond."""


class Unfinished(Protocol):
    """An accepted socket of which no connection is made yet."""

    def give_up(self) -> None:
        """Close the socket, and release its place at once."""
        ...


class Places:
    """The places of one server."""

    def __init__(self, settings: HttpSettings) -> None:
        self._places_max = places_max = settings.connections_max
        self._per_address_max = settings.connections_per_address_max
        self._addresses: dict[str, _Address] = {}
        self._largest: list[tuple[int, str]] | None = None
        """A heap of (negative count, address), the address with the most connections first. It exists for one turn of the loop. Each change
        of a count adds an entry, and the earlier entries of that address are out of date.
        """
        self._new_clients_max = math.ceil(places_max / NEW_CLIENTS_PART)
        self._of_parties: list[tuple[int, list[Connection]]] | None = None
        """For each party its weight and its connections, each list with the oldest of an address first. It exists for `PARTIES_S`, or until
        one of them closes.
        """
        self._last_answers: set[Connection] = set()
        """Connections that have no place any more, and end with the answer to their call."""
        self.weight_of: Callable[[bytes], int] = lambda party: 1
        """Returns the weight of a party, by its name in UTF-8; 0 if it is not registered. The process that serves sets it."""
        self.taken = 0
        """The places that are taken. A connection takes its place when it is accepted."""
        self._too_many, self._too_many_of_address = [
            problem_of(Overloaded(f"{count} connections{whose} are open already: {what}", 1))
            for count, whose, what in (
                (places_max, "", "retry later"),
                (self._per_address_max, " from your address", "reuse them, or retry later"),
            )
        ]
        self._place_taken = Overloaded(f"{places_max} connections are open already, most of them from your address: retry later", 1)
        self._share_exceeded = Overloaded(
            f"{places_max} connections are open already, and your party has more than its share of them: retry later", 1
        )

    def take(self, network: str) -> Answer | None:
        """Give a place to a connection that is accepted; returns the rejection instead if it exceeds a limit.

        Above the limit for all addresses, the new connection replaces one of the address with the most, or of a party with more than its
        share. So an address with few connections can still connect.
        """
        counted = self._addresses.get(network)
        own_count = 0 if counted is None else counted.count
        if 0 < self._per_address_max <= own_count:
            return self._too_many_of_address
        if self.taken >= self._places_max and not (self._make_place(own_count) or self._make_place_of_party(own_count)):
            return self._too_many
        if counted is None:
            counted = self._addresses[network] = _Address()
        self._count_more(network, counted, 1)
        return None

    def _count_more(self, network: str, counted: "_Address", connections: int) -> None:
        counted.count += connections
        self.taken += connections
        if self._largest is not None:
            heappush(self._largest, (-counted.count, network))

    def _make_place(self, own_count: int) -> bool:
        """End a connection without an admitted submission, of the address with the most connections.

        Returns False if none may end at an address with more than `own_count` + 1.
        """
        if self._largest is None:
            asyncio.get_running_loop().call_soon(self._forget_largest)
            self._largest = [(-each.count, network) for network, each in self._addresses.items()]
            heapify(self._largest)
        while self._largest and -self._largest[0][0] > own_count + 1:
            count, network = heappop(self._largest)
            most = self._addresses.get(network)
            if most is None or most.count != -count:
                continue
            if most.accepted:
                next(iter(most.accepted)).give_up()
                return True
            for connection in list(most.connections):
                if not connection.parties and connection.give_way(self._place_taken):
                    self._forget(connection)
                    return True
        return False

    def _make_place_of_party(self, own_count: int) -> bool:
        """End a connection of the party that has the most by weight, while unauthenticated connections have less than their part.

        Parties have more than the rest then, and that party has more than its share of it. Returns False for an address that has that part
        by itself: its clients cost no look at all connections.
        """
        if own_count >= self._new_clients_max:
            return False
        if self._of_parties is None:
            asyncio.get_running_loop().call_later(PARTIES_S, self._forget_parties)
            self._of_parties = self._connections_of_parties()
        if self.taken - sum([len(connections) for _, connections in self._of_parties]) >= self._new_clients_max:
            return False
        _, connections = max(self._of_parties, key=lambda each: len(each[1]) / each[0])
        connection = min(connections, key=lambda each: GIVES_WAY.index(each.state))
        if not connection.give_way(self._share_exceeded):  # it has a submission that is being decided
            if len(self._last_answers) >= self._new_clients_max:
                return False
            connection.stop()
            self._last_answers.add(connection)
        connections.remove(connection)
        self._forget(connection)
        return True

    def _connections_of_parties(self) -> list[tuple[int, list[Connection]]]:
        """Returns (weight, connections) for each party. Connections with several parties are a proxy's: its address has their weights."""
        by_lane: dict[Lane, list[Connection]] = {}
        for each in self._addresses.values():
            for connection in each.connections:
                if connection.parties:
                    by_lane.setdefault(connection.client.lane, []).append(connection)
        weights = [sum(map(self.weight_of, set().union(*[each.parties for each in lane]))) for lane in by_lane.values()]
        return [(max(1, weight), lane) for weight, lane in zip(weights, by_lane.values(), strict=True)]

    def _forget_largest(self) -> None:
        self._largest = None

    def _forget_parties(self) -> None:
        self._of_parties = None

    def release(self, network: str) -> None:
        """Free the place of a connection, or of an accepted socket."""
        counted = self._addresses[network]
        self._count_more(network, counted, -1)
        if not counted.count:
            del self._addresses[network]

    def add_accepted(self, accepted: Unfinished, network: str) -> None:
        """Register an accepted socket that has a place, until `remove_accepted`."""
        self._addresses[network].accepted[accepted] = None

    def remove_accepted(self, accepted: Unfinished, network: str) -> None:
        """Forget an accepted socket: a connection was made of it, or will not be."""
        if (counted := self._addresses.get(network)) is not None:  # the connection may be closed already
            counted.accepted.pop(accepted, None)

    def opened(self, connection: Connection) -> None:
        """Register a connection that has a place, now that it is made."""
        self._addresses[connection.network].connections[connection] = None

    def closed(self, connection: Connection) -> None:
        """Free the place of a connection that is closed, unless another one has it already."""
        self._last_answers.discard(connection)
        if connection.parties:  # strangers that connect and leave must not cost a new list each time
            self._of_parties = None
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        counted = self._addresses.get(connection.network)
        if counted is not None and counted.connections.pop(connection, False) is None:
            self.release(connection.network)


class _Address:
    """The connections from one address."""

    __slots__ = ("accepted", "connections", "count")

    def __init__(self) -> None:
        self.connections: dict[Connection, None] = {}
        """In the order in which they were made."""
        self.accepted: dict[Unfinished, None] = {}
        """The accepted sockets that are no connection yet, in the order in which they were accepted."""
        self.count = 0
        """The number of connections and accepted sockets."""
