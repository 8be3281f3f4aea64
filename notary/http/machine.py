"""The state machine of a connection: states, events, transitions, and the time limit of each state.

              bytes          call             end            answer
opened -> HEAD <---- IDLE    HEAD ----> BODY ----> DECIDING ----> IDLE
                                         | answer          end
                                         +-------> ANSWERED ----> IDLE      the answer left before the body had come
                                         | reject          end
                                         +-------> REJECTED -----> IDLE      the answer waits until the body has come
"""

from enum import IntEnum
from math import inf
from typing import Final

from notary.http.settings import HttpSettings


class ConnectionState(IntEnum):
    """States of a connection, relative to its current call."""

    IDLE = 0
    """Between calls."""
    HEAD = 1
    """A head is expected, or a part of it has come."""
    BODY = 2
    """The application has the head, and the body is coming."""
    REJECTED = 3
    """The application has rejected the call; the answer leaves when the body has come."""
    ANSWERED = 4
    """The answer has left; the rest of the body is coming."""
    DECIDING = 5
    """The body is complete, and the application decides."""
    CLOSING = 6
    """The last answer is on its way out, or the client has not closed its half yet."""
    CLOSED = 7
    """The transport is gone."""


class Event(IntEnum):
    """Events of a connection."""

    BYTES = 0
    """Bytes of a next call have come."""
    CALL = 1
    """A head is complete and is handed to the application."""
    ANSWER = 2
    """The application answers."""
    REJECT = 3
    """The application answers without looking at the body."""
    END = 4
    """The body is complete."""
    LATE = 5
    """The state's deadline has passed."""
    BREAK = 6
    """The bytes are not HTTP/1.1, or exceed a limit."""
    EOF = 7
    """The client sends no more."""
    STOP = 8
    """The server stops or needs the place, or the connection has answered its last call."""
    LOST = 9
    """The transport was closed."""


_S, _E = ConnectionState, Event
_ENDS: Final = {_E.STOP: _S.CLOSING, _E.BREAK: _S.CLOSING, _E.EOF: _S.CLOSING, _E.LATE: _S.CLOSING, _E.LOST: _S.CLOSED}
_STAYS: Final = {_E.BYTES, _E.ANSWER, _E.REJECT, _E.END, _E.BREAK, _E.EOF, _E.STOP}

TRANSITIONS: Final[dict[ConnectionState, dict[Event, ConnectionState]]] = {
    _S.IDLE: {_E.BYTES: _S.HEAD, _E.CALL: _S.BODY} | _ENDS,
    _S.HEAD: {_E.BYTES: _S.HEAD, _E.CALL: _S.BODY} | _ENDS,
    # The application answers a call whose body is late. A server that stops still answers the call that it is reading.
    _S.BODY: {_E.ANSWER: _S.ANSWERED, _E.REJECT: _S.REJECTED, _E.END: _S.DECIDING} | _ENDS | {_E.LATE: _S.BODY, _E.STOP: _S.BODY},
    _S.REJECTED: {_E.END: _S.IDLE} | _ENDS,
    _S.ANSWERED: {_E.END: _S.IDLE} | _ENDS,
    # The application has its own deadline, and its answer leaves no matter what comes after the body.
    _S.DECIDING: {_E.ANSWER: _S.IDLE, _E.LOST: _S.CLOSED} | dict.fromkeys((_E.BYTES, _E.BREAK, _E.EOF, _E.STOP), _S.DECIDING),
    _S.CLOSING: {_E.LATE: _S.CLOSED, _E.LOST: _S.CLOSED} | dict.fromkeys(_STAYS, _S.CLOSING),
    _S.CLOSED: {_E.LATE: _S.CLOSED, _E.LOST: _S.CLOSED} | dict.fromkeys(_STAYS, _S.CLOSED),
}
"""The next state for each state and event. Any other event cannot happen in that state."""

GIVES_WAY: Final = (_S.CLOSED, _S.CLOSING, _S.IDLE, _S.HEAD, _S.ANSWERED, _S.REJECTED, _S.BODY, _S.DECIDING)
"""The order in which the connections of a party give way to other clients: first those whose end costs it the least."""


def seconds_of(settings: HttpSettings, state: ConnectionState) -> float:
    """Returns the time limit of a state."""
    limits = {
        ConnectionState.IDLE: settings.keep_alive_s,
        ConnectionState.BODY: settings.body_s,
        ConnectionState.DECIDING: inf,
        ConnectionState.CLOSED: inf,
    }
    return limits.get(state, settings.head_s)
