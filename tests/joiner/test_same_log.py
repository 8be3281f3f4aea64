"""What a worker holds against its log before it reads on: bounds, the last ordering record that its index has applied, and how long."""

import pytest

from joiner.same_log import Trust, contradiction, regrown
from ordering.errors import Fatal
from ordering.log import ORDERING, Bounds, Record
from ordering.memory import MemoryLog

NOTHING_READ = {ORDERING: 0, 0: 0, 1: 0}


async def _log(*values: bytes) -> MemoryLog:
    """A log whose ordering stream says these values, a millisecond apart."""
    times = iter(range(1_000, 2_000))
    log = MemoryLog(2, lambda: next(times))
    writer = await log.open_writer()
    for value in values:
        await writer.append(ORDERING, None, value)
    await writer.close()
    return log


async def _last(log: MemoryLog) -> Record:
    reader = await log.open_reader({})
    records = await reader.poll(1_000)
    await reader.close()
    return records[-1]


def test_bounds_that_agree() -> None:
    """A log that holds all that was read and all that comes next contradicts nothing; a stream that it leaves out is not judged."""
    assert contradiction({ORDERING: 5, 0: 0, 1: 7}, {ORDERING: Bounds(0, 5), 0: Bounds(0, 9)}) == ""


@pytest.mark.parametrize(
    ("read_next", "bounds", "told"),
    [
        ({ORDERING: 5}, {ORDERING: Bounds(0, 4)}, "ahead of its log: it has read the ordering topic up to offset 5, and the log ends at 4"),
        ({3: 5}, {3: Bounds(0, 4)}, "ahead of its log: it has read payload partition 3 up to offset 5"),
        ({0: 2}, {0: Bounds(3, 9)}, "payload partition 0 begins at offset 3, needed from 2"),
    ],
)
def test_bounds_that_contradict(read_next: dict[int, int], bounds: dict[int, Bounds], told: str) -> None:
    """A log that ends before what was read, or begins after what is needed, is told apart and named, with the runbook's page."""
    assert told in contradiction(read_next, bounds)
    assert "docs/runbook.md" in contradiction(read_next, bounds)


async def test_the_same_log() -> None:
    """A log that still holds the last record applied, and more behind it, is read on."""
    applied = await _log(b"one", b"two")
    grown = await _log(b"one", b"two", b"three")
    assert await regrown(grown, NOTHING_READ, 1, (await _last(applied)).digest()) == ""


async def test_cut_and_grown_again() -> None:
    """A log that was cut and has grown past the index's offsets with other records is refused, though its bounds look right."""
    applied = await _log(b"one", b"two")
    grown_again = await _log(b"one", b"another two", b"three")
    why = await regrown(grown_again, NOTHING_READ, 1, (await _last(applied)).digest())
    assert "ordering record 1 is not the one that this index has applied" in why
    assert "docs/runbook.md" in why


async def test_same_words_at_another_time() -> None:
    """A record with the same bytes that the log took at another time is another record: log time would differ."""
    applied = await _last(await _log(b"one"))
    later = Record(applied.stream, applied.offset, applied.append_time_ms + 1, applied.key, applied.value)
    assert "ordering record 0" in await regrown(await _log(b"one"), NOTHING_READ, 0, later.digest())


async def test_nothing_applied() -> None:
    """A new index takes any log."""
    assert await regrown(await _log(), NOTHING_READ, -1, None) == ""


# ---- how long a contradiction has to last ----


def test_a_contradiction_has_to_last() -> None:
    """The first one costs the trust, the one at the limit the worker; which is new, and that it goes on, is told apart."""
    trust = Trust(10)
    trust.agreed()
    assert trust.contradicted("it was cut", 100)
    assert not trust
    assert "it was cut" in trust.doubt
    assert not trust.contradicted("it was cut", 109.9)
    with pytest.raises(Fatal, match="it was cut"):
        trust.contradicted("it was cut", 110)


def test_a_contradiction_that_passes() -> None:
    """A log that agrees is trusted again, and the next contradiction has to last as long as the first."""
    trust = Trust(10)
    trust.contradicted("it was cut", 100)
    trust.agreed()
    assert trust
    assert trust.doubt == ""
    assert trust.contradicted("it was cut", 200)
    assert not trust.contradicted("it was cut", 209)


def test_a_contradiction_that_is_interrupted() -> None:
    """While the log cannot be asked nothing is known of it: it is not trusted, and the time begins anew."""
    trust = Trust(10)
    trust.contradicted("it was cut", 100)
    trust.interrupted()
    assert not trust
    assert trust.contradicted("it was cut", 200)
    with pytest.raises(Fatal):
        trust.contradicted("it was cut", 210)


def test_no_trust_before_the_first_look() -> None:
    """A log is not trusted before it was looked at."""
    assert not Trust(10)
    assert "not been held against" in Trust(10).doubt
