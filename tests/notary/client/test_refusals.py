"""`Refusals`: the rejections of one call, and the time to give up."""

import pytest

from notary.client import Refused
from notary.client.refusals import Refusals

URLS = ["a", "b", "c"]


def refusal(url: str) -> Refused:
    return Refused(url, 401, "/problems/unknown-party", "", "")


def test_the_first_refusal_is_raised_when_all_were_asked() -> None:
    """The first rejection is raised once each other URL has rejected or failed, in any order."""
    refusals, first = Refusals(URLS), refusal("b")
    refusals.refused("b", first)
    refusals.failed("c")
    refusals.failed("c")
    assert refusals.first is first
    assert set(refusals.by_url) == {"b"}
    with pytest.raises(Refused) as caught:
        refusals.refused("a", refusal("a"))
    assert caught.value is first


def test_what_failed_before_is_tried_again() -> None:
    """A URL that failed before the first rejection is tried again."""
    refusals = Refusals(URLS)
    refusals.failed("a")
    refusals.refused("b", refusal("b"))
    refusals.failed("c")
    with pytest.raises(Refused):
        refusals.failed("a")


def test_what_was_taken_in_cannot_be_refused() -> None:
    """After one worker admitted the submission, failures do not end the call; it ends only when every URL has rejected it."""
    refusals = Refusals(URLS)
    refusals.refused("b", refusal("b"))
    refusals.taken_in()
    for _ in range(3):
        refusals.failed("a")
        refusals.failed("c")
    assert refusals.first is None
    refusals.refused("a", refusal("a"))
    with pytest.raises(Refused):
        refusals.refused("c", refusal("c"))
