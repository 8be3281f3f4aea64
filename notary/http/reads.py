"""A call that only reads. It is answered at once, in pieces, or when the transaction is decided (a long poll)."""

from typing import Final

from notary.http.call import JSON, Answer, Call
from notary.http.health import HEALTH, health
from notary.http.lifecycle import Lifecycle
from notary.http.lookups import LOOK_UPS, NOTARY, TRANSACTIONS, asked_transaction, shows_decisions
from notary.http.openapi import document
from notary.http.problems import MethodNotAllowed, NotFound
from notary.http.query import asked_wait_s
from notary.worker import Worker
from ordering.errors import NotReady
from ordering.ids import TransactionId, excerpt
from ordering.pieces import Pieces

OPENAPI: Final = "/openapi.json"
LONG_POLLS_SHARE: Final = 4
"""At most one in this many of `connections_max` may be in a long poll, so that other clients still get connections."""

LOOK_UP_US: Final = 50
"""The estimated time of a look-up that is not done in pieces."""


class Read:
    """One call that only reads: `start` checks it, `end` ends its long poll, and `_show` answers it."""

    __slots__ = ("_app", "_call", "_route", "_tick", "_transaction_id")

    _tick: int
    _transaction_id: TransactionId

    def __init__(self, app: Lifecycle, call: Call, route: str) -> None:
        self._app = app
        self._call = call
        self._route = route

    def start(self) -> None:
        """Answer the call, or begin a long poll. Raises `NotFound`, `MethodNotAllowed`, `Malformed` or `NotAParty`."""
        call, readers = self._call, self._app.readers
        if not self._route:
            raise NotFound(f"there is nothing at {excerpt(call.path)} on this port")
        if call.method not in ("GET", "HEAD"):
            raise MethodNotAllowed("this address accepts GET and HEAD only", "GET, HEAD")
        if readers is not None and not call.may_read and shows_decisions(call.path):
            readers.check(call)
        if self._route != TRANSACTIONS or not self._begin_long_poll():
            self._show()

    def _begin_long_poll(self) -> bool:
        """Begin a long poll if the call has `?wait=N` and its transaction is not decided yet. Returns False to answer the call at once.

        The long poll ends when the transaction is decided on this worker, or after N seconds.
        """
        transaction_id, wait_s = asked_transaction(self._call.path[len(TRANSACTIONS) :]), asked_wait_s(self._call.query)
        app, worker = self._app, self._app.worker
        if (
            not wait_s
            or not self._call.may_wait
            or worker is None
            or worker.serving_suspended() is not None
            or worker.index.has_decided([transaction_id])
        ):
            return False
        if app.long_polls >= max(1, worker.config.http.connections_max // LONG_POLLS_SHARE) and not self._make_place():
            return False
        app.long_polls += 1
        app.long_polls_of.setdefault(self._call.network, {})[self] = None
        app.waiting.add(self)
        self._transaction_id = transaction_id
        app.awaited.when_decided(transaction_id, self.end)
        self._call.left = self.end  # otherwise clients that connect and leave would use up all long polls
        self._tick = app.deadlines.end_after(min(wait_s, worker.config.http.wait_s_max), self)
        return True

    def _make_place(self) -> bool:
        """End the oldest long poll of the address with the most. Returns False if that address has at most one more than the client's."""
        long_polls_of = self._app.long_polls_of
        most = max(long_polls_of.values(), key=len)
        if len(most) <= len(long_polls_of.get(self._call.network, ())) + 1:
            return False
        next(iter(most)).end()
        return True

    def end(self) -> None:
        """End the long poll. The answer waits for the turn of its address, since hundreds of long polls may end together."""
        if self in self._app.waiting:
            self._app.waiting.remove(self)
            self._app.long_polls -= 1
            mine = self._app.long_polls_of[self._call.network]
            del mine[self]
            if not mine:
                del self._app.long_polls_of[self._call.network]
            self._app.awaited.forget(self._transaction_id, self.end)
            self._app.deadlines.forget(self._tick, self)
            self._call.left = None
            self._app.turns.do(self._show_in_turn(), network=self._call.network)

    def _show_in_turn(self) -> Pieces[None]:
        self._show()
        yield LOOK_UP_US

    def _show(self) -> None:
        """Answer at once, or in pieces from the next turn on. For a client that has left, read nothing from the index."""
        if self._call.gone:
            self._app.drop(self._call)
            return
        try:
            found = self._found()
            if isinstance(found, tuple):
                self._answer(found)
            else:
                self._app.turns.do(self._show_in_pieces(found, self._app.worker), network=self._call.network)
        except Exception as problem:
            self._app.reject(self._call, self._route, problem)

    def _found(self) -> Answer | Pieces[Answer]:
        """Returns the answer, or the pieces that make it."""
        app, route, worker = self._app, self._route, self._app.worker
        if route in HEALTH:
            return health(app, route, self._call.query)
        if route == OPENAPI:
            return 200, JSON, document()
        if worker is None:
            raise NotReady(app.no_worker)
        if route != NOTARY and (why := worker.serving_suspended()) is not None:
            raise NotReady(why)
        return LOOK_UPS[route](worker, self._call.path[len(route) :])

    def _show_in_pieces(self, pieces: Pieces[Answer], worker: Worker | None) -> Pieces[None]:
        app = self._app
        try:
            while not self._call.gone:
                if app.worker is None or app.worker is not worker or app.turns.is_suspended:
                    raise NotReady((app.worker and app.worker.serving_suspended()) or app.no_worker)
                try:
                    yield next(pieces)
                except StopIteration as done:
                    self._answer(done.value)
                    return
            app.drop(self._call)
        except Exception as problem:
            app.reject(self._call, self._route, problem)

    def _answer(self, answer: Answer) -> None:
        """Send an answer. No cache may keep it if only parties may read it."""
        status, headers, body = answer
        if self._app.readers is not None and shows_decisions(self._call.path):
            headers = [*[each for each in headers if each[0] != b"cache-control"], (b"cache-control", b"no-store")]
        self._app.answer(self._call, self._route, (status, headers, body))
