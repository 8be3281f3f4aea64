"""Since when something stands still that ought to move. Pure: offsets and times come in.

A reader that fails without a word looks like one that has nothing to read: its polls return, and return nothing. What tells the two
apart is the log's end, asked of somebody else: who has more to come and stays where it is stands still.
"""

from collections.abc import Mapping


class Standstill:
    """What was seen to have more to come: where it stood, and since when."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}

    def look(self, at: Mapping[int, int], ends: Mapping[int, int], now_s: float) -> dict[int, float]:
        """They stand at these offsets now, and more is to come up to these ends: how long each has stood still that is not at its end.

        Who has no end here need not move, and one that was not looked at begins anew.
        """
        self._seen = {name: (at[name], self._since(name, at[name], now_s)) for name, end in ends.items() if at[name] < end}
        return {name: now_s - since_s for name, (_, since_s) in self._seen.items()}

    def _since(self, name: int, offset: int, now_s: float) -> float:
        before = self._seen.get(name)
        return before[1] if before is not None and before[0] == offset else now_s
