"""Tests of `Incarnations`, the table of incarnations: registered, fenced, and the last sequence counted of each."""

from joiner import Incarnations


def _incarnations() -> Incarnations:
    incarnations = Incarnations()
    incarnations.register(b"n1".ljust(16), "w1", 10)
    return incarnations


def test_a_table_made_from_its_rows_goes_on() -> None:
    """A table made from persisted incarnations continues like the first: nonces, names, ordinals and sequences are kept."""
    incarnations = _incarnations()
    incarnations.register(b"n2".ljust(16), "w2", 11)
    incarnations.register(b"n3".ljust(16), "w1", 12)
    incarnations.count(3, 7, 13)
    again = Incarnations(incarnations.changed.values())
    assert again.register(b"n2".ljust(16), "w1", 14) is None
    assert not again.counts(3, 7)
    new, fenced = again.register(b"n4".ljust(16), "w1", 14) or (None, None)
    assert new is not None
    assert fenced is not None
    assert (new.incarnation, fenced.incarnation) == (4, 3)


def test_changed_collects_what_to_persist() -> None:
    """`changed` holds the latest state of each incarnation that changed since it was cleared."""
    incarnations = _incarnations()
    incarnations.changed.clear()
    incarnations.count(1, 1, 11)
    incarnations.count(1, 2, 12)
    assert [(state.sequence_last, state.active_at_ms) for state in incarnations.changed.values()] == [(2, 12)]


def test_format_version_is_kept() -> None:
    """The format version of an incarnation's registration stays with it through entries, fences and restarts."""
    incarnations = Incarnations()
    incarnations.register(b"n1".ljust(16), "w1", 10, 7)
    incarnations.count(1, 1, 11)
    incarnations.fence(1, 1)
    state = Incarnations(incarnations.changed.values()).get(1)
    assert state is not None
    assert state.format_version == 7
