"""The knowledge of one call once a worker has refused its party (401, 403), or given an outcome that is not proven. Pure.

Workers read the file of parties each for themselves, so one may not know yet whom another one knows. Therefore no refusal of this kind is
the last word before every other URL has been asked once more; those that refused are not asked again. And what one worker has taken in,
another one cannot refuse any more: from then on its outcome is found out, or unknown.

An outcome that is not proven is treated alike: another worker may prove it. Where none does, that is what the call comes to.
"""

from collections.abc import Mapping, Sequence

from notary.client.errors import Refused, Unproven


class Refusals:
    """The refusals of one call over these URLs."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._by_url: dict[str, Refused | Unproven] = {}
        self._in_vain: set[str] = set()
        self._taken_in = False

    @property
    def by_url(self) -> Mapping[str, Refused | Unproven]:
        """Who refused, and how."""
        return self._by_url

    @property
    def first(self) -> Refused | Unproven | None:
        """What the call comes to if nobody says otherwise; None while it was not refused, or where that does not matter."""
        unproven = next((problem for problem in self._by_url.values() if isinstance(problem, Unproven)), None)
        return unproven or (None if self._taken_in else next(iter(self._by_url.values()), None))

    def refused(self, url: str, problem: Refused | Unproven) -> None:
        """This URL refuses, or does not prove what it says; raises the first refusal when there is nobody left to ask."""
        self._by_url[url] = problem
        self._check()

    def failed(self, url: str) -> None:
        """This URL gave no answer; raises as `refused` does."""
        if self._by_url:
            self._in_vain.add(url)
            self._check()

    def taken_in(self) -> None:
        """Some worker has it, and has not decided all of it yet."""
        self._taken_in = True

    def _check(self) -> None:
        asked = self._by_url.keys() if self._taken_in else self._by_url.keys() | self._in_vain
        if len(asked) == len(self._urls):
            raise self.first or next(iter(self._by_url.values()))
