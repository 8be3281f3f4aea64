"""`Route`: the next URL, and its time."""

from notary.client import RetryPolicy
from notary.client.route import Route

RETRIES = RetryPolicy(backoff_s_first=1.0, backoff_s_max=8.0)


def route(*urls: str) -> Route:
    return Route(urls, RETRIES, lambda: 1.0)


def test_the_first_failure_costs_no_pause() -> None:
    """After one failure the next URL is tried at once; the client pauses only when all URLs have failed."""
    way = route("a", "b")
    assert way.next(0.0)[0] == "a"
    way.failed("a", 0.0, 1.0, 0.0)
    assert way.next(1.0)[0] == "b"
    assert way.next(1.0)[1] <= 1.0
    way.failed("b", 1.0, 1.5, 0.0)
    assert way.next(1.5) == ("a", 2.0)


def test_pauses_double_up_to_a_limit() -> None:
    """Each failure in a row doubles the back-off; an answer resets it."""
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
    """A Retry-After longer than the back-off counts, and a later failure does not shorten it."""
    way = route("a")
    way.failed("a", 0.0, 0.0, 30.0)
    way.failed("a", 0.0, 1.0, 0.0)
    assert way.next(1.0) == ("a", 30.0)


def test_attempts_that_fail_together_are_one_failure() -> None:
    """Many attempts that fail together when a worker dies extend the back-off once."""
    together, alone = route("a"), route("a")
    for _ in range(10):
        together.failed("a", 0.0, 5.0, 0.0)
    alone.failed("a", 0.0, 5.0, 0.0)
    assert together.next(5.0) == alone.next(5.0)


def test_a_slow_worker_gives_way() -> None:
    """A worker that could not decide in time is not tried first again, if there is another."""
    way = route("a", "b")
    way.slow("a", 0.0)
    assert way.next(0.0)[0] == "b"
    alone = route("a")
    alone.slow("a", 3.0)
    assert alone.next(0.0) == ("a", 3.0)


def test_chance_spreads_the_pauses() -> None:
    """Random numbers spread the back-off between half of its full length and the full length."""
    assert RETRIES.pause_s(2, 0.0) == 1.0
    assert RETRIES.pause_s(2, 1.0) == 2.0
    assert RETRIES.pause_s(10_000, 1.0) == 8.0


def test_a_url_may_be_left_out() -> None:
    """A URL can be left out of one call, which tries the others in turn; other calls still use that URL."""
    way = route("a", "b", "c")
    assert way.next(0.0, {"a"})[0] == "b"
    assert way.next(0.0, {"a", "b"})[0] == "c"
    assert way.next(0.0)[0] == "a"
