"""The page shows what the report says, of any log, and nothing of what somebody wrote into the log is more than text in it."""

import re
from html.parser import HTMLParser

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from spark_join.report.page import page
from spark_join.report.plots import lines, moment, stacked, time_ticks
from spark_join.report.series import BINS, Moment, Series, series
from spark_join.verify import OUTCOMES

HOSTILE = "O=<script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u202egnp.\u2066\x07</td>"
SAID = {
    "notary": HOSTILE,
    "decisions": 3,
    "outcomes": {"committed": 2, "input-conflict": 1},
    "root": "ab" * 32,
    "checkpoints": {"compared": 1, "not_compared": 0, "passed_over": 0},
    "signatures_checked": True,
    "undecided_from_offset": None,
    "violations": {"bad-signature": 1_001},
    "ranges": {"ordering": {"0": [0, 5]}, "payload": {}},
    "ordering_records": {"entry": 4, "register": 1},
    "versions": {"spark": "4.2.0", "python": "3.11.7"},
    "stages_s": {"decisions": 1.25},
}
EMPTY = Series(0, 1, [], {})
NONE = dict.fromkeys(OUTCOMES.values(), 0)
VOID = {"meta", "br"}


class Reader(HTMLParser):
    """What a browser makes of a page: tags, attributes and text; fails for a tag that is not closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_hostile_names_are_text() -> None:
    """A party's and a notary's name that are markup add no tag and no attribute, and what would turn the text around is spelled out."""
    row = Row(type="bad-signature", position=7, offset=9, id=None, found=HOSTILE, expected="a signature")
    harmless = {**SAID, "notary": "O=Notary"}
    wanted = Reader(page(harmless, EMPTY, [Row(**{**row.asDict(), "found": "a name"})]))
    found = Reader(page(SAID, EMPTY, [row]))
    assert found.tags == wanted.tags
    assert found.attributes == wanted.attributes
    shown = "O=<script>alert(1)</script><img src=x onerror=alert(1)>\"'&\\u202egnp.\\u2066\\u0007</td>"
    assert found.text.count(shown) == 2
    assert "1,000 more are in " in found.text


def test_page_needs_nothing_else() -> None:
    """No script, no address of anything to fetch, and a browser is told to fetch nothing."""
    moments = [Moment({**NONE, "committed": 2}, 1.0, 9.0), Moment(NONE, None, None)]
    text = page({**SAID, "notary": "O=Notary", "violations": {}}, Series(0, 1_000, moments, {-1: 1, 0: 2}), [])
    found = Reader(text)
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(found.tags)
    assert {"src", "href", "style", "onload"}.isdisjoint(dict(found.attributes))
    assert not re.search(r"https?:|url\(|@import", text)
    assert "default-src 'none'" in text
    assert found.tags.count("svg") == 4


def test_nothing_to_draw() -> None:
    """An empty log has a page too, which says so."""
    nothing = {**SAID, "decisions": 0, "outcomes": dict.fromkeys(OUTCOMES.values(), 0), "violations": {}}
    found = Reader(page(nothing, EMPTY, []))
    assert "Nothing was asked: there is nothing to draw." in found.text
    assert "no violation" in found.text
    assert "svg" not in found.tags


def test_bins_are_bounded(spark: SparkSession) -> None:
    """Whatever the span is: no more bins than `BINS`, and each decision and batch in one of them."""
    entries = spark.range(1_000).select(
        (F.col("id") * F.col("id") * 77 + 5).alias("log_time_ms"),
        (F.col("id") % 9).alias("count"),
        F.col("id").alias("append_time_ms"),
        (F.col("id") + (F.col("id") % 3 - 1) * 40).alias("content_append_time_ms"),
    )
    decisions = entries.select("log_time_ms", F.when(F.col("count") == 0, 1).otherwise(0).alias("outcome"))
    found = series(decisions, entries)
    assert found.start_ms == 5
    assert 100 < len(found.moments) <= BINS
    assert (len(found.moments) - 1) * found.width_ms <= 999 * 999 * 77 < len(found.moments) * found.width_ms
    assert sum(each.outcomes["committed"] for each in found.moments) == 888
    assert sum(each.outcomes["input-conflict"] for each in found.moments) == 112
    assert found.batch_sizes == {-1: 112, 0: 111, 1: 222, 2: 444, 3: 111}
    assert found.moments[0].apart_ms_p99 == 40


def test_one_batch_is_one_bin(spark: SparkSession) -> None:
    """Log times that are all the same, and a batch whose content was never timed."""
    entries = spark.createDataFrame(
        [(7, 3, 7, None)], "log_time_ms bigint, count bigint, append_time_ms bigint, content_append_time_ms bigint"
    )
    decisions = spark.createDataFrame([(7, 0)], "log_time_ms bigint, outcome int")
    assert series(decisions, entries) == Series(7, 1, [Moment({**NONE, "committed": 1}, None, None)], {1: 1})


def test_no_batch_is_no_bin(spark: SparkSession) -> None:
    """An empty log."""
    entries = spark.createDataFrame([], "log_time_ms bigint, count bigint, append_time_ms bigint, content_append_time_ms bigint")
    assert series(spark.createDataFrame([], "log_time_ms bigint, outcome int"), entries) == EMPTY


@pytest.mark.parametrize(("at_ms", "text"), [(0, "1970-01-01 00:00:00 UTC"), (2**62, f"{2**62} ms"), (-1, "1969-12-31 23:59:59 UTC")])
def test_moments_that_no_calendar_has(at_ms: int, text: str) -> None:
    """A log may say any time."""
    assert moment(at_ms) == text


def test_bars_stand_on_each_other() -> None:
    """Heights are in proportion, the highest sum fits, and a name is escaped where the mouse shows it."""
    drawn = stacked("T", "u", {"a<": [1, 0], "b": [3, 2]}, time_ticks(0, 10_000), "axis")
    heights = [float(each) for each in re.findall(r'<rect [^>]*height="([\d.]+)"', drawn)]
    assert heights[1] == pytest.approx(3 * heights[0], abs=0.2)
    assert heights[2] == pytest.approx(2 * heights[0], abs=0.2)
    assert sum(heights[:2]) <= 240
    assert "<title>a&lt;: 1</title>" in drawn
    Reader(drawn)


def test_lines_have_gaps() -> None:
    """Where there is no value there is no line, and a value by itself is seen."""
    drawn = lines("T", "u", {"a": [1.0, None, 2.0, 3.0]}, time_ticks(0, 10_000), "axis")
    points = [each.split() for each in re.findall(r'points="([^"]+)"', drawn)]
    assert [len(each) for each in points] == [2, 2]
    assert points[0][0] == points[0][1]
    Reader(drawn)
