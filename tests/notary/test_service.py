"""Tests of the reasons for which a worker ends."""

from notary.service import reasons
from ordering.errors import NotReady, Quarantined


def test_a_reason_of_several_tasks_is_listed_once() -> None:
    """The exceptions of nested groups are one list: each reason once, and each type of it."""
    nested = ExceptionGroup("", [Quarantined("a row"), NotReady("a row"), Quarantined("another")])
    group = ExceptionGroup("", [Quarantined("a row"), nested])
    assert [(type(each), str(each)) for each in reasons(group)] == [(Quarantined, "a row"), (NotReady, "a row"), (Quarantined, "another")]


def test_bugs_with_the_same_text_are_all_listed() -> None:
    """Two unexpected errors with the same text may come from different places: both tracebacks are needed."""
    first, second = KeyError("position"), KeyError("position")
    assert reasons(ExceptionGroup("", [first, ExceptionGroup("", [second])])) == [first, second]
