"""Tests the measured rate, from which admission and Retry-After are computed."""

from joiner.rate import Rate


def _answer(rate: Rate, per_s: int, seconds: int, start_s: float, *, ran_dry: bool) -> None:
    rate.begin(start_s)
    for tenth in range(1, 10 * seconds + 1):
        if ran_dry:
            rate.ran_dry()
        rate.answered(per_s // 10, start_s + tenth / 10 + 1e-6)
    rate.end(start_s + seconds)


def test_nothing_is_known_at_first() -> None:
    """Without any measurement Retry-After is a guess of two seconds."""
    assert Rate().seconds_for(10**6) == 2


def test_retry_after_is_in_seconds_up_to_sixty() -> None:
    """Retry-After is an integer of seconds, rounded up, from 1 to 60."""
    rate = Rate()
    _answer(rate, 100, 3, 1_000, ran_dry=False)
    assert 99 < rate.per_s < 101
    assert (rate.seconds_for(1), rate.seconds_for(450), rate.seconds_for(10**6)) == (1, 5, 60)


def test_demand_is_no_capacity() -> None:
    """A window in which the queue ran dry teaches nothing: a lone client's demand must not look like the worker's capacity."""
    rate = Rate()
    _answer(rate, 100, 3, 1_000, ran_dry=False)
    known_per_s = rate.per_s
    _answer(rate, 10, 3, 2_000, ran_dry=True)
    assert rate.per_s == known_per_s


def test_who_was_rejected_shows_capacity() -> None:
    """A queue at its limit may run dry between batches; a rejection shows that there was more demand, so the window counts."""
    rate = Rate()
    rate.begin(0)
    rate.ran_dry()
    rate.rejected()
    rate.answered(500, 0.5)
    rate.end(0.5)
    assert rate.per_s == 1_000


def test_idle_time_does_not_count() -> None:
    """Idle time does not count: after a quiet hour the rate is that of the seconds with pending requests."""
    rate = Rate()
    _answer(rate, 1_000, 2, 100_000, ran_dry=False)
    _answer(rate, 1_000, 2, 200_000, ran_dry=False)
    assert 990 < rate.per_s < 1_010


def test_a_log_that_is_away_is_not_slow() -> None:
    """Seconds without any answer are an outage: a known rate stays, and an unknown one stays unknown."""
    rate = Rate()
    rate.begin(0)
    rate.rejected()
    rate.answered(10, 0.5)
    rate.answered(10, 7.0)
    assert rate.per_s == 0
    _answer(rate, 1_000, 2, 10, ran_dry=False)
    known_per_s = rate.per_s
    rate.begin(20)
    rate.rejected()
    rate.answered(10, 27)
    rate.end(27)
    assert rate.per_s == known_per_s


def test_the_rate_follows_a_change() -> None:
    """The rate follows a change within a few windows, in both directions."""
    rate = Rate()
    for per_s in (100, 10_000, 100):
        _answer(rate, per_s, 12, per_s, ran_dry=False)
        assert 0.9 * per_s < rate.per_s < 1.1 * per_s
