"""Fetch sessions (KIP-227): a fetch names only the topic-partitions whose offset is another than before, and its response those with news.

aiokafka begins no sessions. Each of its fetches names all topic-partitions that the broker leads, and so does the response. It encodes and
decodes each one in Python. With 17 of them, a third of a worker's calls of Python functions for a small batch were for that.

`Interruptions` still detects the same. A partition that a response leaves out has no new record, no other high watermark and no error. The
first fetch of a session names all partitions. A session ends with its connection, and with a fetch that fails.
"""

from typing import Any, Final, NamedTuple, TypeAlias

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import for_code
from aiokafka.protocol.fetch import FetchRequest, FetchRequestStruct

_SINCE_VERSION: Final = 7
_BEGIN: Final = 0
"""The epoch of the first fetch of a session."""
_EPOCH_MAX: Final = 2**31 - 1
_SESSION_IS_GONE: Final = frozenset({70, 71})
"""The broker has forgotten the session, or counts another epoch."""

_Parts: TypeAlias = dict[tuple[str, int], tuple[int, int]]
"""For each topic and number of a partition its offset, and the most bytes to return."""


class _Session(NamedTuple):
    number: int
    """The broker's number for it; 0 while there is none."""
    epoch: int
    """The epoch of its next fetch."""
    connection: Any
    parts: _Parts
    """The partitions as the broker has them."""


class _Fetch(FetchRequest):  # type: ignore[misc]  # aiokafka ships no types
    """A fetch in a session; a complete one if the broker does not know sessions."""

    def __init__(self, request: FetchRequest, session: _Session, wanted: _Parts) -> None:
        self.__dict__.update(request.__dict__)
        self._session = session
        self._wanted = wanted

    def build(self, request_struct_class: type[FetchRequestStruct]) -> FetchRequestStruct:
        if request_struct_class.API_VERSION < _SINCE_VERSION:
            return super().build(request_struct_class)
        known = self._session.parts
        if known:
            self._topics = _by_topic({key: part for key, part in self._wanted.items() if known.get(key) != part})
        message: Any = super().build(request_struct_class)
        message.session_id, message.session_epoch = self._session.number, self._session.epoch
        message.forgotten_topics_data = [(topic, [number]) for topic, number in known.keys() - self._wanted.keys()]
        return message


class FetchSessions:
    """The fetch sessions of one client, one with each broker. The client has not been used yet, and has one fetch in flight to a broker."""

    def __init__(self, client: AIOKafkaClient) -> None:
        self._client = client
        self._sessions: dict[int, _Session] = {}
        self._send = client.send
        client.send = self._send_in_session

    async def _send_in_session(self, node: int, request: Any, **how: Any) -> Any:
        if not isinstance(request, FetchRequest):
            return await self._send(node, request, **how)
        wanted = {(topic, number): (offset, most) for topic, parts in request.topics for number, offset, most in parts}
        session = self._sessions.get(node) or _Session(0, _BEGIN, None, {})
        connection = self._connection(node)
        if connection is None or connection is not session.connection or not connection.connected():
            session = _anew(session)
        self._sessions[node] = _anew(session)  # unless this fetch succeeds
        response = await self._send(node, _Fetch(request, session, wanted), **how)
        if response.API_VERSION < _SINCE_VERSION:
            return response
        if response.error_code in _SESSION_IS_GONE and session.epoch != _BEGIN:
            return await self._send_in_session(node, request, **how)
        if response.error_code:
            raise for_code(response.error_code)()
        connection = self._connection(node)  # if it has broken since then, another one
        if response.session_id and (session.epoch == _BEGIN or session.connection is connection):
            epoch = session.epoch % _EPOCH_MAX + 1
            self._sessions[node] = _Session(response.session_id, epoch, connection, wanted)
        return response

    def _connection(self, node: int) -> Any:
        return self._client._conns.get((node, ConnectionGroup.DEFAULT))


def _anew(session: _Session) -> _Session:
    """Returns the session that the next fetch begins, in place of this one."""
    return _Session(session.number, _BEGIN, None, {})


def _by_topic(parts: _Parts) -> list[tuple[str, list[tuple[int, int, int]]]]:
    topics: dict[str, list[tuple[int, int, int]]] = {}
    for (topic, number), (offset, most) in parts.items():
        topics.setdefault(topic, []).append((number, offset, most))
    return list(topics.items())
