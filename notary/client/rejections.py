"""URLs that rejected the party of one call (401, 403) or returned an unproven outcome, and the decision to give up. Pure.

Each worker reads the parties file by itself, so one worker may know a party before another does. So such a rejection is final only after
every other URL was tried once more. A URL that rejected is not tried again in this call. Once one worker has admitted the submission,
rejections by others no longer count: the call ends with an outcome, or with the outcome unknown.

An unproven outcome is treated the same way: another worker may prove it. If none does, the call raises `Unproven`.
"""

from collections.abc import Mapping, Sequence

from notary.client.errors import Rejected, Unproven


class Rejections:
    """The rejections and unproven outcomes of one call over these URLs."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._by_url: dict[str, Rejected | Unproven] = {}
        self._in_vain: set[str] = set()
        self._admitted = False

    @property
    def by_url(self) -> Mapping[str, Rejected | Unproven]:
        """The error of each URL that rejected the call or did not prove its outcome."""
        return self._by_url

    @property
    def first(self) -> Rejected | Unproven | None:
        """The error to raise if no URL gives a valid answer: an `Unproven` first, else the first `Rejected`.

        None while there is no such error, and for a `Rejected` after another worker admitted the submission.
        """
        unproven = sorted(self._unproven(), key=lambda problem: problem.reason != "unknown-key")  # the key may have been rotated
        return unproven[0] if unproven else (None if self._admitted else next(iter(self._by_url.values()), None))

    def rejected(self, url: str, problem: Rejected | Unproven) -> None:
        """Record the error of a URL. Raises `first` when no URL is left to try."""
        self._by_url[url] = problem
        self._check()

    def failed(self, url: str) -> None:
        """Record that a URL gave no answer. Raises as `rejected` does."""
        if self._by_url:
            self._in_vain.add(url)
            self._check()

    def admitted(self) -> None:
        """Record that a worker admitted the submission and has not decided all of it yet (202)."""
        self._admitted = True

    def _unproven(self) -> list[Unproven]:
        return [problem for problem in self._by_url.values() if isinstance(problem, Unproven)]

    def _check(self) -> None:
        # A URL that gave no answer may still prove the outcome. But for an unknown key, the caller first asks for the notary's keys.
        reasons = {problem.reason for problem in self._unproven()}
        waits = self._admitted or (reasons and "unknown-key" not in reasons)
        asked = self._by_url.keys() if waits else self._by_url.keys() | self._in_vain
        if len(asked) == len(self._urls):
            raise self.first or next(iter(self._by_url.values()))
