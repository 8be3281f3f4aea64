"""`Rejections`: the rejections of one call, and the time to give up."""

import pytest

from notary.client import Rejected, Unproven
from notary.client.rejections import Rejections
from notary.receipts.errors import NotVerified, Reason

URLS = ["a", "b", "c"]


def rejection(url: str) -> Rejected:
    return Rejected(url, 401, "/problems/unknown-party", "", "")


def test_the_first_rejection_is_raised_when_all_were_asked() -> None:
    """The first rejection is raised once each other URL has rejected or failed, in any order."""
    rejections, first = Rejections(URLS), rejection("b")
    rejections.rejected("b", first)
    rejections.failed("c")
    rejections.failed("c")
    assert rejections.first is first
    assert set(rejections.by_url) == {"b"}
    with pytest.raises(Rejected) as caught:
        rejections.rejected("a", rejection("a"))
    assert caught.value is first


def test_what_failed_before_is_tried_again() -> None:
    """A URL that failed before the first rejection is tried again."""
    rejections = Rejections(URLS)
    rejections.failed("a")
    rejections.rejected("b", rejection("b"))
    rejections.failed("c")
    with pytest.raises(Rejected):
        rejections.failed("a")


def test_an_admitted_submission_cannot_be_rejected() -> None:
    """After one worker admitted the submission, failures do not end the call; it ends only when every URL has rejected it."""
    rejections = Rejections(URLS)
    rejections.rejected("b", rejection("b"))
    rejections.admitted()
    for _ in range(3):
        rejections.failed("a")
        rejections.failed("c")
    assert rejections.first is None
    rejections.rejected("a", rejection("a"))
    with pytest.raises(Rejected):
        rejections.rejected("c", rejection("c"))


def test_an_unknown_key_is_raised_before_other_reasons() -> None:
    """The key may have been rotated, so the caller asks for the notary's keys, which helps against no other reason."""
    rejections = Rejections(URLS)

    def unproven(url: str, reason: Reason) -> Unproven:
        return Unproven(url, NotVerified(reason, ""), "an outcome")

    rejections.rejected("a", unproven("a", "bad-signature"))
    rejections.rejected("b", key := unproven("b", "unknown-key"))
    with pytest.raises(Unproven) as caught:
        rejections.rejected("c", unproven("c", "wrong-root"))
    assert caught.value is key
