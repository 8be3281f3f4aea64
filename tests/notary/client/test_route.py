"""Which URL is asked next, and when."""

from notary.client import Patience
from notary.client.route import Route

PATIENCE = Patience(backoff_s_first=1.0, backoff_s_max=8.0)


def route(*urls: str) -> Route:
    return Route(urls, PATIENCE, lambda: 1.0)


def test_the_first_failure_costs_no_pause() -> None:
    """The next URL may be asked at once; only when all have failed is there a pause."""
    way = route("a", "b")
    assert way.next(0.0)[0] == "a"
    way.failed("a", 0.0, 1.0, 0.0)
    assert way.next(1.0)[0] == "b"
    assert way.next(1.0)[1] <= 1.0
    way.failed("b", 1.0, 1.5, 0.0)
    assert way.next(1.5) == ("a", 2.0)


def test_pauses_double_up_to_a_limit() -> None:
    """Each failure in a row doubles the pause; an answer forgets them."""
    way, now = route("a"), 0.0
    pauses = []
    for _ in range(6):
        way.failed("a", now, now, 0.0)
        pauses.append(way.next(now)[1] - now)
        now = way.next(now)[1]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    way.answered("a")
    assert way.next(now)[1] <= now
    way.failed("a", now, now, 0.0)
    assert way.next(now)[1] == now + 1.0


def test_retry_after_is_the_least_pause() -> None:
    """A worker's wish counts where it is longer than our own pause, and a later failure does not shorten it."""
    way = route("a")
    way.failed("a", 0.0, 0.0, 30.0)
    way.failed("a", 0.0, 1.0, 0.0)
    assert way.next(1.0) == ("a", 30.0)


def test_attempts_that_fail_together_are_one_failure() -> None:
    """Many attempts in flight when a worker dies do not make the pause longer than one would."""
    together, alone = route("a"), route("a")
    for _ in range(10):
        together.failed("a", 0.0, 5.0, 0.0)
    alone.failed("a", 0.0, 5.0, 0.0)
    assert together.next(5.0) == alone.next(5.0)


def test_a_slow_worker_gives_way() -> None:
    """One that could not decide in time is not the first to be asked again, if there is another."""
    way = route("a", "b")
    way.slow("a")
    assert way.next(0.0)[0] == "b"
    alone = route("a")
    alone.slow("a")
    assert alone.next(0.0)[0] == "a"


def test_chance_spreads_the_pauses() -> None:
    """A pause lies between half of the whole and the whole."""
    assert PATIENCE.pause_s(2, 0.0) == 1.0
    assert PATIENCE.pause_s(2, 1.0) == 2.0
    assert PATIENCE.pause_s(10_000, 1.0) == 8.0


def test_a_url_may_be_left_out() -> None:
    """A call that has its answer from a URL asks the others, in their turn; the URL stays as good as it was for other calls."""
    way = route("a", "b", "c")
    assert way.next(0.0, {"a"})[0] == "b"
    assert way.next(0.0, {"a", "b"})[0] == "c"
    assert way.next(0.0)[0] == "a"
