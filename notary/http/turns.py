"""Work in pieces, in turns of the event loop: between two turns the log and all other calls have theirs."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from ordering.pieces import Pieces

TURN_US: Final = 1_500
"""The work for answers in one turn of the loop, as estimated (`ordering.pieces.Pieces`). A turn may be longer by one piece."""
SHARE_US: Final = 500
"""After so much of it another answer has its turn."""
CALL_US: Final = 20
"""The writing of an answer."""


class Turns:
    """The answers of one application that are made in pieces, each a share of a turn at a time."""

    def __init__(self, may_read: Callable[[], bool]) -> None:
        """`may_read` returns whether answers may be read from the index. It is called once a turn: nothing else runs meanwhile."""
        self._may_read = may_read
        self._work: deque[Pieces[None]] = deque()
        self.silent = False
        """True while nothing may be read from the index in this turn."""

    def do(self, work: Pieces[None]) -> None:
        """Do it from the next turn of the loop on, beside all other work. It must not raise: its call would not be answered."""
        if not self._work:
            asyncio.get_running_loop().call_soon(self._turn)
        self._work.append(work)

    def _turn(self) -> None:
        try:
            self._do_pieces()
        finally:  # a bug in one of them must not keep the others from their turns
            if self._work:
                asyncio.get_running_loop().call_soon(self._turn)

    def _do_pieces(self) -> None:
        self.silent = not self._may_read()
        spent_us = 0
        while self._work and spent_us < TURN_US:
            work, share_us = self._work[0], spent_us + SHARE_US
            try:
                while spent_us < share_us:
                    spent_us += next(work)
                self._work.rotate(-1)
            except StopIteration:
                self._work.popleft()
                spent_us += CALL_US
            except Exception:
                self._work.popleft()
                raise
