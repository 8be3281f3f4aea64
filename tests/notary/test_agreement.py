"""R9: who is wrong when roots differ, told from the log. Each history is read by every worker, each with roots of its own."""

from collections.abc import Mapping
from itertools import permutations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from joiner import RootSeen
from notary.agreement import PENDING_MAX, Agreement, observe, turn_comes_ms

RIGHT, WRONG, OTHER = b"r" * 32, b"w" * 32, b"o" * 32


def seen(name: str, root: bytes, size: int = 10, electorate: str = "abc", log_time_ms: int = 0) -> RootSeen:
    return RootSeen(name, ord(name), size, root, log_time_ms, frozenset(electorate))


def read(own: bytes, *records: RootSeen, size: int = 10, name: str = "x") -> Agreement:
    """What a worker with that root at every size makes of the records, one a step."""
    agreement = Agreement()
    for record in records:
        agreement = observe(agreement, [record], name, size, lambda _: own)
    return agreement


def play(roots: Mapping[str, bytes], first: str, electorate: str | None = None, order: tuple[str, ...] = ()) -> dict[str, Agreement]:
    """`first` writes a checkpoint; then whoever must vote does, in that order; all read the same log."""
    order = order or tuple(sorted(roots))
    log = [seen(first, roots[first], electorate=electorate or "".join(roots))]
    while True:
        states = {name: read(root, *log, name=name) for name, root in roots.items()}
        voter = next(
            (name for name in order if states[name].disputed and not states[name].condemned and name not in states[name].votes.roots),
            None,
        )
        if voter is None:
            return states
        log.append(seen(voter, roots[voter], electorate=electorate or "".join(roots)))


def condemned(states: Mapping[str, Agreement]) -> set[str]:
    return {name for name, state in states.items() if state.condemned}


def silent(states: Mapping[str, Agreement]) -> set[str]:
    return {name for name, state in states.items() if state.disputed}


def test_same_roots_are_agreed() -> None:
    """A checkpoint with our root says that both agree up to there, and nothing else happens."""
    agreement = read(RIGHT, seen("a", RIGHT), seen("b", RIGHT, 9))
    assert (agreement.agreed_size, agreement.dispute, agreement.condemned) == (10, None, "")
    assert (agreement.incarnation_last, agreement.size_last) == (ord("b"), 10)


def test_the_wrong_one_is_condemned_whoever_writes_first() -> None:
    """The history that breaks `a reader with another root stops`: the wrong worker writes, and all the right ones would be gone."""
    for first in "abc":
        for order in permutations("abc"):
            states = play({"a": RIGHT, "b": RIGHT, "c": WRONG}, first, order=order)
            assert condemned(states) == {"c"}, (first, order)
            assert silent(states) == {"c"}
            assert "at 10 decisions" in states["c"].condemned


def test_one_against_one_is_silence() -> None:
    """Of two workers nobody can say which is wrong: neither answers, neither is condemned."""
    states = play({"a": RIGHT, "b": WRONG}, "b")
    assert (silent(states), condemned(states)) == ({"a", "b"}, set())


def test_a_third_that_replays_settles_it() -> None:
    """A worker that replays the log later votes as it passes the dispute, and the wrong one is condemned."""
    states = play({"a": RIGHT, "b": WRONG, "d": RIGHT}, "b", electorate="ab", order=("a", "b", "d"))
    assert (silent(states), condemned(states)) == ({"b"}, {"b"})


def test_one_voice_condemns_nobody() -> None:
    """Where only the writer was active, its root alone is no majority: its own replay must not be condemned by what it said when wrong."""
    agreement = read(RIGHT, seen("a", WRONG, electorate="a"))
    assert agreement.disputed
    assert not agreement.condemned


def test_absent_workers_count() -> None:
    """Two wrong ones that come first are no majority of five, however quick they are."""
    roots = {"a": RIGHT, "b": RIGHT, "c": RIGHT, "d": WRONG, "e": WRONG}
    for order in permutations(roots):
        states = play(roots, "d", order=order)
        assert condemned(states) == {"d", "e"}, order
        assert silent(states) == {"d", "e"}


def test_three_roots() -> None:
    """Two that agree are a majority of three; with three roots nobody wins."""
    assert condemned(play({"a": RIGHT, "b": RIGHT, "c": WRONG}, "c")) == {"c"}
    states = play({"a": RIGHT, "b": OTHER, "c": WRONG}, "c")
    assert (silent(states), condemned(states)) == ({"a", "b", "c"}, set())


def test_first_vote_of_a_name_counts() -> None:
    """A worker cannot outvote others by writing again, nor take its word back."""
    votes = [seen("c", WRONG, electorate="abc")] * 5
    agreement = read(RIGHT, *votes, seen("c", RIGHT))
    assert agreement.disputed
    assert agreement.votes.roots == {"c": WRONG}


def test_a_checkpoint_ahead_is_compared_when_we_get_there() -> None:
    """A root of a size that this worker has not reached says nothing yet, and is not forgotten."""
    ahead = seen("c", WRONG, 12)
    agreement = read(RIGHT, ahead)
    assert (agreement.pending, agreement.disputed) == ((ahead,), False)
    assert not observe(agreement, [], "x", 11, lambda _: RIGHT).disputed
    reached = observe(agreement, [], "x", 12, lambda _: RIGHT)
    assert reached.disputed
    assert reached.pending == ()


def test_checkpoints_far_ahead_are_bounded() -> None:
    """Whoever writes a thousand checkpoints of trees that nobody has fills no memory, and does not hide the nearest."""
    agreement = read(RIGHT, *[seen("c", WRONG, 10**6 - n) for n in range(1000)])
    assert len(agreement.pending) == PENDING_MAX
    assert min(one.size for one in agreement.pending) == 10**6 - 999
    assert agreement.size_last == 0


def test_condemned_stays() -> None:
    """Nothing that comes later makes a condemned index good."""
    agreement = read(WRONG, seen("a", RIGHT), seen("b", RIGHT))
    assert agreement.condemned
    assert observe(agreement, [seen("c", WRONG), seen("d", WRONG)], "x", 10, lambda _: WRONG).condemned == agreement.condemned


def test_the_first_differing_size_is_told_as_far_as_it_is_known() -> None:
    """The message names the positions between the last size agreed on and the one that differs."""
    agreement = observe(Agreement(), [seen("a", RIGHT, 4)], "x", 10, lambda _: RIGHT)
    for record in (seen("a", RIGHT, 9), seen("b", RIGHT, 9)):
        agreement = observe(agreement, [record], "x", 10, lambda _: WRONG)
    assert "from 4 to 8" in agreement.condemned


def test_a_worker_that_agrees_with_itself_has_agreed_with_nobody() -> None:
    """The wrong one that wrote first is told the positions that the others never confirmed."""
    states = play({"a": RIGHT, "b": RIGHT, "c": WRONG}, "c")
    assert "from 0 to 9" in states["c"].condemned
    assert read(RIGHT, seen("a", RIGHT), name="a").agreed_size == 0
    assert read(RIGHT, seen("a", RIGHT), name="b").agreed_size == 10


def test_a_dispute_names_who_has_said_what() -> None:
    """The operator sees each root with its workers, and who has not been heard."""
    told = read(RIGHT, seen("c", WRONG), seen("a", RIGHT)).votes.told()
    assert told == f"at 10 decisions a: {RIGHT.hex()}; c: {WRONG.hex()}; not heard yet: b"


def test_turns_go_round() -> None:
    """The next life after the last writer comes an interval later; the others one after the other, should it be gone."""
    agreement = Agreement(incarnation_last=2, log_time_last_ms=1000)
    assert [turn_comes_ms(agreement, one, [1, 2, 3], 10) for one in (3, 1, 2)] == [1010, 1020, 1030]
    assert turn_comes_ms(agreement, 4, [1, 2, 3], 10) is None


@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True),
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 12), st.booleans()), max_size=30),
    st.lists(st.integers(0, 30), max_size=5),
)
@settings(max_examples=300, deadline=None)
def test_splitting_the_steps_changes_nothing(names: list[str], records: list[tuple[str, int, bool]], cuts: list[int]) -> None:
    """However records are split over steps, and stored between them, a worker thinks the same; a right majority is never condemned."""
    electorate = "".join(sorted({*names, "a", "b", "c"}))
    history = [seen(name, RIGHT if name in "abc" or right else WRONG, size, electorate) for name, size, right in records]
    one_by_one = read(RIGHT, *history, size=12)
    agreement = Agreement()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(history)], strict=True):
        agreement = observe(agreement, history[start:end], "x", 12, lambda _: RIGHT)
        agreement = msgspec.msgpack.decode(msgspec.msgpack.encode(agreement), type=Agreement)
    assert agreement == one_by_one
    if not {name for name, _, right in records if name not in "abc" and not right} - {"d"}:
        assert not agreement.condemned
