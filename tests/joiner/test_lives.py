"""Tests of `Lives`, the table of incarnations: registered, fenced, and the last sequence counted of each."""

from joiner import Lives


def _lives() -> Lives:
    lives = Lives()
    lives.register(b"n1".ljust(16), "w1", 10)
    return lives


def test_ordinals() -> None:
    """An incarnation is the ordinal of its register record among those that took effect."""
    lives = _lives()
    lives.register(b"n1".ljust(16), "w2", 11)
    second, _ = lives.register(b"n2".ljust(16), "w2", 12) or (None, None)
    assert second is not None
    assert second.incarnation == 2
    assert [(life.incarnation, life.name) for life in lives.changed.values()] == [(1, "w1"), (2, "w2")]


def test_nonce_twice() -> None:
    """A register record whose nonce is known begins no incarnation and fences none."""
    lives = _lives()
    lives.changed.clear()
    assert lives.register(b"n1".ljust(16), "w1", 20) is None
    assert lives.counts(1, 1)
    assert not lives.changed


def test_namesake() -> None:
    """A register record fences the earlier incarnation of its worker name, and of no other name."""
    lives = _lives()
    lives.register(b"n2".ljust(16), "w2", 11)
    new, fenced = lives.register(b"n3".ljust(16), "w1", 12) or (None, None)
    assert new is not None
    assert fenced is not None
    assert (new.incarnation, fenced.incarnation, fenced.fenced) == (3, 1, True)
    assert not lives.counts(1, 1)
    assert lives.counts(2, 1)
    assert lives.counts(3, 1)


def test_namesake_of_a_fenced_life() -> None:
    """An incarnation that a peer has fenced already is not fenced again when its name registers."""
    lives = _lives()
    assert lives.fence(1, 0) is not None
    _, fenced = lives.register(b"n2".ljust(16), "w1", 12) or (None, None)
    assert fenced is None


def test_counts() -> None:
    """A sequence counts if it is higher than the last one counted; gaps are allowed."""
    lives = _lives()
    assert not lives.counts(1, 0)
    lives.count(1, 3, 11)
    assert [lives.counts(1, sequence) for sequence in (1, 2, 3, 4, 2**64 - 1)] == [False, False, False, True, True]


def test_unknown_life_is_neither() -> None:
    """A batch of an unregistered incarnation neither counts nor is past."""
    lives = _lives()
    assert not lives.counts(2, 1)
    assert not lives.is_past(2, 1)


def test_is_past() -> None:
    """A sequence is past if its incarnation has counted it or a later one, or is fenced."""
    lives = _lives()
    lives.count(1, 3, 11)
    assert [lives.is_past(1, sequence) for sequence in (2, 3, 4)] == [True, True, False]
    lives.fence(1, 3)
    assert lives.is_past(1, 4)


def test_fence_compares() -> None:
    """A fence takes effect only while the last sequence that it names is still the last one counted."""
    lives = _lives()
    lives.count(1, 3, 11)
    assert lives.fence(1, 2) is None
    assert lives.fence(1, 4) is None
    assert lives.fence(9, 0) is None
    assert lives.fence(1, 3) is not None
    assert lives.fence(1, 3) is None


def test_made_again_from_its_lives() -> None:
    """A table made from persisted incarnations continues like the first: nonces, names, ordinals and sequences are kept."""
    lives = _lives()
    lives.register(b"n2".ljust(16), "w2", 11)
    lives.register(b"n3".ljust(16), "w1", 12)
    lives.count(3, 7, 13)
    again = Lives(lives.changed.values())
    assert again.register(b"n2".ljust(16), "w1", 14) is None
    assert not again.counts(3, 7)
    new, fenced = again.register(b"n4".ljust(16), "w1", 14) or (None, None)
    assert new is not None
    assert fenced is not None
    assert (new.incarnation, fenced.incarnation) == (4, 3)


def test_changed_collects_what_to_persist() -> None:
    """`changed` holds the latest state of each incarnation that changed since it was cleared."""
    lives = _lives()
    lives.changed.clear()
    lives.count(1, 1, 11)
    lives.count(1, 2, 12)
    assert [(life.sequence_last, life.active_at_ms) for life in lives.changed.values()] == [(2, 12)]


def test_retire() -> None:
    """A retire record ends an incarnation whatever its last sequence, once; it cannot end one that has not begun."""
    lives = _lives()
    lives.count(1, 3, 11)
    ended = lives.retire(1)
    assert ended is not None
    assert (ended.incarnation, ended.fenced, ended.sequence_last) == (1, True, 3)
    assert not lives.counts(1, 4)
    assert lives.named("w1") is None
    assert lives.retire(1) is None
    assert lives.retire(2) is None


def test_a_retired_name_may_register_again() -> None:
    """After a retire record the worker name has no incarnation and no vote; a new registration gives it both."""
    lives = _lives()
    lives.retire(1)
    assert lives.names_since(0) == frozenset()
    new, fenced = lives.register(b"n2".ljust(16), "w1", 12) or (None, None)
    assert new is not None
    assert fenced is None
    assert lives.named("w1") == new
    assert lives.names_since(0) == {"w1"}


def test_format_version_is_kept() -> None:
    """The format version of an incarnation's registration stays with it through entries, fences and restarts."""
    lives = Lives()
    lives.register(b"n1".ljust(16), "w1", 10, 7)
    lives.count(1, 1, 11)
    lives.fence(1, 1)
    life = Lives(lives.changed.values()).get(1)
    assert life is not None
    assert life.format_version == 7
