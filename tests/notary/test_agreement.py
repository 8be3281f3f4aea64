"""R9: the log alone shows the wrong worker when roots differ. Every worker reads the same history, each with its own roots."""

import random
from collections.abc import Mapping
from itertools import permutations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joiner import RootSeen, VoteVoid
from joiner.applied import OWNER_NAME
from joiner.ready import OWNER_INCARNATION
from notary.agreement import PENDING_MAX, Agreement, observe, turn_comes_ms
from tests.examples import some

RIGHT, WRONG, OTHER = b"r" * 32, b"w" * 32, b"o" * 32


def seen(name: str, root: bytes, size: int = 10, voters: str = "abc", log_time_ms: int = 0, incarnation: int = 0) -> RootSeen:
    return RootSeen(name, incarnation or ord(name[-1]), size, root, log_time_ms, frozenset(voters))


def read(own: bytes, *records: RootSeen | VoteVoid, size: int = 10, name: str = "x") -> Agreement:
    """Returns the agreement of a worker with that root at every size after reading the records, one a step."""
    agreement = Agreement()
    for record in records:
        agreement = observe(agreement, [(record, size)], name, size, lambda _: own)
    return agreement


def play(roots: Mapping[str, bytes], first: str, voters: str | None = None, order: tuple[str, ...] = ()) -> dict[str, Agreement]:
    """`first` writes a checkpoint; then each worker that must vote does, in that order; all read the same log."""
    order = order or tuple(sorted(roots))
    log = [seen(first, roots[first], voters=voters or "".join(roots))]
    while True:
        states = {name: read(root, *log, name=name) for name, root in roots.items()}
        voter = next(
            (
                name
                for name in order
                if states[name].in_disagreement and not states[name].quarantined and name not in states[name].votes.roots
            ),
            None,
        )
        if voter is None:
            return states
        log.append(seen(voter, roots[voter], voters=voters or "".join(roots)))


def quarantined(states: Mapping[str, Agreement]) -> set[str]:
    return {name for name, state in states.items() if state.quarantined}


def silent(states: Mapping[str, Agreement]) -> set[str]:
    return {name for name, state in states.items() if state.in_disagreement}


def test_same_roots_are_agreed() -> None:
    """A checkpoint with our root records that both workers agree up to its size, and changes nothing else."""
    agreement = read(RIGHT, seen("a", RIGHT), seen("b", RIGHT, 9))
    assert (agreement.agreed_size, agreement.disagreement, agreement.quarantined) == (10, None, "")
    assert (agreement.incarnation_last, agreement.size_last) == (ord("b"), 10)


def test_the_wrong_worker_is_quarantined_when_any_worker_writes_first() -> None:
    """The wrong worker writes first and is still the one quarantined: a rule `stop at another root` would stop all the right workers."""
    for first in "abc":
        for order in permutations("abc"):
            states = play({"a": RIGHT, "b": RIGHT, "c": WRONG}, first, order=order)
            assert quarantined(states) == {"c"}, (first, order)
            assert silent(states) == {"c"}
            assert "at 10 decisions" in states["c"].quarantined


def test_one_against_one_is_silence() -> None:
    """With two workers and two roots, or three and three, no side has a majority: none answers, and none is quarantined."""
    for roots, first in (({"a": RIGHT, "b": WRONG}, "b"), ({"a": RIGHT, "b": OTHER, "c": WRONG}, "c")):
        states = play(roots, first)
        assert (silent(states), quarantined(states)) == (set(roots), set())


def test_a_third_that_replays_settles_it() -> None:
    """A third worker that replays the log votes when it reaches the size of the disagreement, and the wrong worker is quarantined."""
    states = play({"a": RIGHT, "b": WRONG, "d": RIGHT}, "b", voters="ab", order=("a", "b", "d"))
    assert (silent(states), quarantined(states)) == ({"b"}, {"b"})


def test_one_vote_quarantines_no_worker() -> None:
    """If only the writer was active, its root alone is no majority: its own replay is not quarantined by its earlier wrong root."""
    agreement = read(RIGHT, seen("a", WRONG, voters="a"))
    assert agreement.in_disagreement
    assert not agreement.quarantined


def test_absent_workers_count() -> None:
    """Two wrong workers that vote first are no majority of five."""
    roots = {"a": RIGHT, "b": RIGHT, "c": RIGHT, "d": WRONG, "e": WRONG}
    for order in permutations(roots):
        states = play(roots, "d", order=order)
        assert quarantined(states) == {"d", "e"}, order
        assert silent(states) == {"d", "e"}


def test_first_vote_of_a_name_counts() -> None:
    """Only the first vote of a worker counts: it can neither outvote others by writing again nor change its vote."""
    votes = [seen("c", WRONG, voters="abc")] * 5
    agreement = read(RIGHT, *votes, seen("c", RIGHT))
    assert agreement.in_disagreement
    assert agreement.votes.roots == {"c": WRONG}


def test_a_checkpoint_ahead_is_compared_when_we_get_there() -> None:
    """A root of a size that this worker has not reached is kept, and compared when it gets there."""
    ahead = seen("c", WRONG, 12)
    agreement = read(RIGHT, ahead)
    assert (agreement.pending, agreement.in_disagreement) == ((ahead,), False)
    assert not observe(agreement, [], "x", 11, lambda _: RIGHT).in_disagreement
    reached = observe(agreement, [], "x", 12, lambda _: RIGHT)
    assert reached.in_disagreement
    assert reached.pending == ()


def test_checkpoints_far_ahead_are_bounded() -> None:
    """A thousand checkpoints of sizes far ahead do not fill memory, and do not displace the nearest ones."""
    agreement = read(RIGHT, *[seen("c", WRONG, 10**6 - n) for n in range(1000)])
    assert len(agreement.pending) == PENDING_MAX
    assert min(one.size for one in agreement.pending) == 10**6 - 999
    assert agreement.size_last == 0


def test_no_later_checkpoint_ends_a_quarantine() -> None:
    """Not even later votes of other workers for its own root."""
    agreement = read(WRONG, seen("a", RIGHT), seen("b", RIGHT))
    assert agreement.quarantined
    assert (
        observe(agreement, [(seen("c", WRONG), 10), (seen("d", WRONG), 10)], "x", 10, lambda _: WRONG).quarantined == agreement.quarantined
    )


def test_the_message_bounds_the_first_differing_position() -> None:
    """The message names the positions between the last agreed size and the first that differs."""
    agreement = observe(Agreement(), [(seen("a", RIGHT, 4), 10)], "x", 10, lambda _: RIGHT)
    for record in (seen("a", RIGHT, 9), seen("b", RIGHT, 9)):
        agreement = observe(agreement, [(record, 10)], "x", 10, lambda _: WRONG)
    assert "from 4 to 8" in agreement.quarantined


def test_a_worker_that_agrees_with_itself_has_agreed_with_nobody() -> None:
    """The message of a worker that only agreed with itself names all positions up to the difference."""
    states = play({"a": RIGHT, "b": RIGHT, "c": WRONG}, "c")
    assert "from 0 to 9" in states["c"].quarantined
    assert read(RIGHT, seen("a", RIGHT), name="a").agreed_size == 0
    assert read(RIGHT, seen("a", RIGHT), name="b").agreed_size == 10


def test_the_owners_root_is_a_vote_without_a_turn() -> None:
    """A trim record shows the wrong one of two workers. It moves nobody's turn, and an owner who is wrong is outvoted."""
    vote, before = seen("the owner", RIGHT, 6, "ab"), read(RIGHT, seen("a", RIGHT, 4, "ab", log_time_ms=7))
    vote = msgspec.structs.replace(vote, incarnation=0)
    wrong = observe(before, [(vote, 10)], "b", 10, lambda size: RIGHT if size < 5 else WRONG)
    assert (wrong.in_disagreement, wrong.quarantined) == (True, "")
    turn = ("incarnation_last", "size_last", "log_time_last_ms")
    assert [getattr(wrong, name) for name in turn] == [getattr(before, name) for name in turn]
    votes = [(seen("b", WRONG, 6, "ab"), 10), (seen("a", RIGHT, 6, "ab"), 10)]
    assert observe(wrong, votes, "b", 10, lambda size: WRONG).quarantined
    right = observe(before, [(vote, 10), *votes], "a", 10, lambda _: RIGHT)
    assert (right.in_disagreement, right.quarantined, right.outvoted) == (False, "", {"b": (ord("b"), 6)})
    careless = [(msgspec.structs.replace(vote, root=WRONG), 10), (seen("a", RIGHT, 6, "ab"), 10), (seen("b", RIGHT, 6, "ab"), 10)]
    agreed = observe(before, careless, "a", 10, lambda _: RIGHT)
    assert (agreed.in_disagreement, agreed.outvoted) == (False, {"the owner": (0, 6)})
    assert observe(agreed, [careless[0]], "a", 10, lambda _: RIGHT) == agreed


def test_no_worker_silences_the_owner() -> None:
    """A thief of the notary's key may register under any name. Once its vote has lost and the key is rotated, the owner's votes count."""
    thief = [(seen("the owner", WRONG, 6, "ab"), 10), *[(seen(name, RIGHT, 6, "ab"), 10) for name in "ab"]]
    agreement = observe(Agreement(), thief, "x", 10, lambda _: RIGHT)
    assert agreement.outvoted.keys() == {"the owner"}
    vote = RootSeen(OWNER_NAME, OWNER_INCARNATION, 8, RIGHT, 0, frozenset("ab"))
    wrong = observe(agreement, [(vote, 10)], "b", 10, lambda _: WRONG)
    assert wrong.in_disagreement


def test_a_root_disagreement_renders_each_vote() -> None:
    """The report shows each root with its workers, and the workers that have not voted."""
    text = read(RIGHT, seen("c", WRONG), seen("a", RIGHT)).votes.rendered()
    assert text == f"at 10 decisions 'a': {RIGHT.hex()}; 'c': {WRONG.hex()}; no vote yet: 'b'"


def test_turns_go_round() -> None:
    """The next incarnation after the last writer may write an interval later; each further one waits another interval."""
    agreement = Agreement(incarnation_last=2, log_time_last_ms=1000)
    assert [turn_comes_ms(agreement, one, [1, 2, 3], 10) for one in (3, 1, 2)] == [1010, 1020, 1030]
    assert turn_comes_ms(agreement, 4, [1, 2, 3], 10) is None


@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True),
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 12), st.booleans()), max_size=30),
    st.lists(st.integers(0, 30), max_size=5),
)
@settings(max_examples=some(300), deadline=None)
def test_splitting_the_steps_changes_nothing(names: list[str], records: list[tuple[str, int, bool]], cuts: list[int]) -> None:
    """The split of records into steps, with a store between them, does not change the result; a right majority is never quarantined."""
    voters = "".join(sorted({*names, "a", "b", "c"}))
    history = [seen(name, RIGHT if name in "abc" or right else WRONG, size, voters) for name, size, right in records]
    one_by_one = read(RIGHT, *history, size=12)
    agreement = Agreement()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(history)], strict=True):
        agreement = observe(agreement, [(one, 12) for one in history[start:end]], "x", 12, lambda _: RIGHT)
        agreement = msgspec.msgpack.decode(msgspec.msgpack.encode(agreement), type=Agreement)
    assert agreement == one_by_one
    if not {name for name, _, right in records if name not in "abc" and not right} - {"d"}:
        assert not agreement.quarantined


def test_names_out_of_the_log_are_quoted() -> None:
    """A worker name from the log is escaped and shortened in messages, since anyone who may register chooses its text."""
    many = "".join(map(chr, range(200, 400)))
    names = ["\x1b[31m\nall is well", *[f"x{number}" for number in range(50)]]
    text = read(RIGHT, *[seen(name, WRONG, voters=many) for name in names]).votes.rendered()
    assert "\x1b" not in text
    assert "\n" not in text
    assert "more" in text


def test_what_is_settled_stays_settled() -> None:
    """A repeated vote does not open a settled size again, even with more voters by then; a worker that differs later is only outvoted."""
    agreement = read(RIGHT, seen("c", WRONG), seen("a", RIGHT), seen("b", RIGHT))
    assert not agreement.in_disagreement
    for late in (seen("a", RIGHT, voters="abcdefgh"), seen("d", WRONG, voters="abcdefgh")):
        agreement = observe(agreement, [(late, 10)], "b", 10, lambda _: RIGHT)
        assert not agreement.in_disagreement
        assert not agreement.quarantined


def test_a_repeated_vote_renews_the_voters() -> None:
    """A worker that left for good and was fenced stops blocking once the votes are repeated: these count the voters of that time."""
    agreement = read(RIGHT, *[seen(name, root, voters="abcdefg") for name, root in (("c", WRONG), ("a", RIGHT), ("b", RIGHT))])
    assert agreement.in_disagreement
    assert not observe(agreement, [(seen("a", RIGHT, voters="abc"), 10)], "b", 10, lambda _: RIGHT).in_disagreement


def _settled(*more: RootSeen | VoteVoid) -> Agreement:
    """Returns the state of `b`: `c` was outvoted at 10 decisions, and then the other records follow."""
    records = (seen("c", WRONG), seen("a", RIGHT), seen("b", RIGHT), *more)
    return read(RIGHT, *records, size=20, name="b")


def test_a_late_copy_opens_nothing_after_another_size_was_compared() -> None:
    """A settled size stays settled when the outvoted worker's checkpoint appears again, also after other sizes were compared."""
    agreement = _settled(seen("a", RIGHT, 12), seen("b", RIGHT, 15), seen("c", WRONG))
    assert (agreement.in_disagreement, agreement.quarantined, agreement.votes.size) == (False, "", 15)
    again = observe(agreement, [(seen("c", WRONG, 12), 20), (seen("c", WRONG, 10), 20)], "b", 20, lambda _: RIGHT)
    assert not again.in_disagreement


@pytest.mark.parametrize(("root", "size", "incarnation", "opens"), [(OTHER, 4, 1, False), (WRONG, 14, 200, True), (RIGHT, 14, 200, False)])
def test_a_new_incarnation_of_who_was_outvoted_is_heard(root: bytes, size: int, incarnation: int, opens: bool) -> None:
    """A worker that was outvoted and has replayed the log votes again; copies of checkpoints of an earlier incarnation open nothing."""
    assert _settled(seen("a", RIGHT, 12), seen("c", root, size, incarnation=incarnation)).in_disagreement is opens


def test_an_earlier_difference_of_who_was_outvoted_is_answered() -> None:
    """A vote of the outvoted worker at a smaller size opens a disagreement there: it waits for our vote, and is then quarantined."""
    agreement = _settled(seen("a", RIGHT, 12), seen("c", WRONG, 7))
    assert (agreement.in_disagreement, agreement.votes.size) == (True, 7)
    agreement = observe(agreement, [(seen("a", RIGHT, 7), 20), (seen("b", RIGHT, 7), 20)], "b", 20, lambda _: RIGHT)
    assert not agreement.in_disagreement
    for size in (7, 9, 10, 14):
        assert not observe(agreement, [(seen("c", WRONG, size), 20)], "b", 20, lambda _: RIGHT).in_disagreement


def test_a_vote_of_who_is_retired_is_void() -> None:
    """The owner retires the wrong one of two workers: its vote is void, it is no longer a voter, and the other serves again."""
    one_against_one = [seen("a", RIGHT, voters="ab"), seen("b", WRONG, voters="ab")]
    assert read(RIGHT, *one_against_one, name="a").in_disagreement
    agreement = read(RIGHT, *one_against_one, VoteVoid("b"), name="a")
    assert (agreement.in_disagreement, agreement.quarantined) == (False, "")
    assert agreement.votes.roots == {"a": RIGHT}


def test_who_is_retired_blocks_no_majority() -> None:
    """A voter that is gone blocks a majority; once the owner retires it, the votes so far are enough."""
    votes = [seen(name, root, voters="abcd") for name, root in (("c", WRONG), ("a", RIGHT), ("b", RIGHT))]
    assert read(RIGHT, *votes, name="a").in_disagreement
    assert not read(RIGHT, *votes, VoteVoid("d"), name="a").in_disagreement
    assert read(WRONG, *votes, VoteVoid("d"), name="c").quarantined


def test_a_vote_ahead_of_our_tree_is_void_too() -> None:
    """A checkpoint of a size that this worker has not reached is dropped when its writer is retired."""
    agreement = read(RIGHT, seen("c", WRONG, 12), VoteVoid("c"))
    assert agreement.pending == ()
    assert not observe(agreement, [], "x", 12, lambda _: RIGHT).in_disagreement


def test_a_void_vote_without_a_disagreement_changes_nothing() -> None:
    """Retiring a worker that agreed with us, or has not voted, changes nothing; a quarantined index stays quarantined."""
    agreement = read(RIGHT, seen("a", RIGHT))
    for name in ("a", "nobody"):
        assert observe(agreement, [(VoteVoid(name), 10)], "x", 10, lambda _: RIGHT) == agreement
    wrong = read(WRONG, seen("a", RIGHT), seen("b", RIGHT))
    assert observe(wrong, [(VoteVoid("a"), 10), (VoteVoid("b"), 10)], "x", 10, lambda _: WRONG).quarantined == wrong.quarantined


class Simulated:
    """A simulated worker: it has a tree size at each place of the log, and one root for each size."""

    def __init__(self, name: str, wrong_from: int | None, extra: int) -> None:
        self.name = name
        self.wrong_from = wrong_from
        self.extra = extra
        self.decided = 0
        self.read = 0
        self.agreement = Agreement()

    def root_at(self, size: int) -> bytes:
        return b"%032d" % size if self.wrong_from is None or size <= self.wrong_from else b"w%031d" % size

    def size(self) -> int:
        """The tree's size there; a wrong worker may have decided more, for example when it lost a decision and decided the retry again."""
        return self.decided + (self.extra if self.wrong_from is not None and self.decided > self.wrong_from else 0)

    def step(self, log: list[int | RootSeen], count: int) -> None:
        seen_here: list[tuple[RootSeen, int]] = []
        for record in log[self.read : self.read + count]:
            if isinstance(record, int):
                self.decided += record
            else:
                seen_here.append((record, self.size()))
        self.read = min(len(log), self.read + count)
        self.agreement = observe(self.agreement, seen_here, self.name, self.size(), self.root_at)

    def vote(self, voters: frozenset[str]) -> RootSeen | None:
        votes = self.agreement.votes
        if not self.agreement.in_disagreement or self.agreement.quarantined or self.name in votes.roots:
            return None
        return RootSeen(self.name, ord(self.name), votes.size, self.root_at(votes.size), 0, voters)


@pytest.mark.seconds
@pytest.mark.parametrize("names", ["abc", "abcde"])
@pytest.mark.parametrize("histories", [range(500), pytest.param(range(500, 10_000), marks=pytest.mark.nightly)], ids=["some", "many"])
def test_one_wrong_worker_is_always_quarantined_and_no_other(names: str, histories: range) -> None:
    """In random histories the one wrong worker is always quarantined, and all others serve again in the end.

    Checkpoints cross, votes come late and in any order, and readers split the log into any steps. The wrong worker is wrong from some size
    on, perhaps with more decisions than the others. In the end all workers read the rest of the log.
    """
    for seed in histories:
        draw = random.Random(f"{names}/{seed}")
        voters = frozenset(names)
        wrong_one = draw.choice(names)
        workers = [Simulated(name, draw.randint(0, 12) if name == wrong_one else None, draw.choice([0, 0, 1, 3])) for name in names]
        log: list[int | RootSeen] = []
        for moment in range(400):
            worker = draw.choice(workers)
            worker.step(log, draw.randint(1, 4))
            behind = worker.read < len(log)
            if vote := worker.vote(voters):
                if vote not in log and draw.random() < 0.7:
                    log.append(vote)
            elif moment < 300 and not worker.agreement.in_disagreement and draw.random() < 0.3:
                log.append(draw.randint(1, 3))
            elif moment < 300 and not worker.agreement.in_disagreement and not behind and draw.random() < 0.5:
                log.append(RootSeen(worker.name, ord(worker.name), worker.size(), worker.root_at(worker.size()), 0, voters))
        # Faults end here: all workers read to the end and vote, and the serving workers write checkpoints again.
        for _ in range(40):
            for worker in workers:
                worker.step(log, 10_000)
                if (vote := worker.vote(voters)) is not None:
                    log.append(vote)
                elif not worker.agreement.in_disagreement:
                    log += [1, RootSeen(worker.name, ord(worker.name), worker.size(), worker.root_at(worker.size()), 0, voters)]
        assert {worker.name for worker in workers if worker.agreement.quarantined} == {wrong_one}, seed
        assert {worker.name for worker in workers if worker.agreement.in_disagreement} == {wrong_one}, seed
