"""Tests how ports are drawn for servers that do not listen yet."""

import socket

from deploy.local.ports import free_ports, hold, is_free, listens


def test_no_port_is_drawn_twice() -> None:
    """Two servers that start at the same moment get different ports, though none listens yet."""
    drawn = [port for _ in range(200) for port in free_ports(1)]
    assert len(set(drawn)) == len(drawn)


def test_a_held_port_can_be_listened_on_and_not_held_again() -> None:
    """The system refuses a second holder, in this process as in another, and lets the server listen."""
    (held,) = free_ports(1)
    assert is_free(held)
    assert not hold(held)
    with socket.create_server(("127.0.0.1", held)):
        assert listens(held)


def test_a_port_where_a_server_listens_is_not_held() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not hold(server.getsockname()[1])
