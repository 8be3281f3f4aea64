"""Tests that the page shows what the report contains, for any log, and that text from the log stays text."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from spark_join.constants import OUTCOMES
from spark_join.report.page import BINS, Moment, Series, page, series, violations_over_time
from spark_join.report.plots import bars, lanes, lines, moment, stacked, time_ticks

pytestmark = pytest.mark.seconds  # matplotlib draws each page

HOSTILE = "O=<script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u202egnp.\u2066\x07</td>"
SAID = {
    "notary": HOSTILE,
    "log_id": "12" * 32,
    "verified_at": "2026-11-22T03:04:05Z",
    "continued_from": None,
    "exports": {},
    "decisions": 3,
    "outcomes": {"committed": 2, "input-conflict": 1},
    "root": "ab" * 32,
    "checkpoints": {"compared": 1, "not_compared": 0, "skipped": 0},
    "skipped": {"signature": {"records": 2, "offset_first": 3}},
    "signatures_checked": True,
    "undecided_from_offset": None,
    "undecided_entries": 0,
    "undecided_requests": 0,
    "undecided_because": None,
    "violations": {"bad-signature": 1_001},
    "settled": {"writers": 0, "records": 0, "shown": []},
    "gaps_settled": 0,
    "salvaged": {"decisions": 0, "hashes": 0, "lost": 0},
    "unlisted": None,
    "ranges": {"ordering": {"0": [0, 5]}, "payload": {}},
    "ordering_records": {"entry": 4, "register": 1},
    "versions": {"spark": "4.2.0", "python": "3.11.7"},
    "stages_s": {"decisions": 1.25},
}
EMPTY = Series(0, 1, [], {})
NONE = dict.fromkeys(OUTCOMES.values(), 0)
VOID = {"meta", "br"}


class Reader(HTMLParser):
    """A page as a browser parses it: tags, attributes and text. It fails for a tag that is not closed where it should be."""

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


def _texts(**members: object) -> list[str]:
    """Returns the texts of the page of a log without violations, with these members of the report."""
    return [text for each in Reader(page({**SAID, "violations": {}, **members}, EMPTY, [], {})).text if (text := each.strip())]


def _text(**members: object) -> str:
    return " ".join(_texts(**members))


def test_hostile_names_are_text() -> None:
    """A party's or notary's name with markup adds no tag and no attribute, and characters that reverse text are escaped."""
    row = Row(type="bad-signature", position=7, offset=9, id=None, found=HOSTILE, expected="a signature")
    export = {"decisions": 3, "violations": {}}
    before = {"report": "/report.json", "report_sha256": "ab" * 32, "ordering_offset": 9, "decisions": 2, "root": "cd" * 32}
    before["signatures_checked"] = True
    name = "x" * len(HOSTILE)
    harmless = {**SAID, "notary": name, "exports": {name: export}, "continued_from": {**before, "report": name}}
    harmful = {**SAID, "exports": {HOSTILE: export}, "continued_from": {**before, "report": HOSTILE}}
    wanted = Reader(page(harmless, EMPTY, [Row(**{**row.asDict(), "found": name})], {}))
    found = Reader(page(harmful, EMPTY, [row], {}))
    assert found.tags == wanted.tags
    assert found.attributes == wanted.attributes
    shown = "O=<script>alert(1)</script><img src=x onerror=alert(1)>\"'&\\u202egnp.\\u2066\\u0007</td>"
    assert found.text.count(shown) == 4
    assert "1,000 more are in " in found.text


def test_page_needs_nothing_else() -> None:
    """The page has no script and no address to fetch, and forbids the browser to fetch anything."""
    numbers = Series(0, 1_000, [Moment({**NONE, "committed": 2}, 1.0, 9.0, 3, 0), Moment(NONE, None, None, None, None)], {-1: 1, 0: 2})
    row = Row(type="bad-signature", position=1, offset=9, id=None, found="this", expected="that")
    text = page({**SAID, "notary": "O=Notary"}, numbers, [row], {"bad-signature": [900, 1]})
    found = Reader(text)
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(found.tags)
    assert {"src", "href", "style", "onload"}.isdisjoint(dict(found.attributes))
    assert not re.search(r"https?:|url\(|@import", text)
    assert "default-src 'none'" in text
    assert f"Log id: <code>{'12' * 32}</code>" in text
    assert found.tags.count("svg") == 6


def test_what_was_verified_before() -> None:
    """The page of a run that continues from another names it, its end, and the records that the numbers cover."""
    before = {"report": "/monday/report.json", "report_sha256": "ef" * 32, "ordering_offset": 12_345, "decisions": 2, "root": "cd" * 32}
    assert {
        "Verified before",
        "/monday/report.json",
        "ef" * 32,
        "up to ordering offset 12,345: 2 decisions",
        "cd" * 32,
        "not all of them were checked",
    } <= set(_texts(continued_from={**before, "signatures_checked": False}))
    assert "The log was read from its beginning." in _texts()
    assert "Verified before" not in _texts()


def test_exports_and_what_came_of_them() -> None:
    """Each export that was compared is listed, with its differences or their absence."""
    exports = {
        "/exports/w1": {"decisions": 1_000, "violations": {}},
        "/exports/w2": {"decisions": 999, "violations": {"double-spend": 1, "index-mismatch": 2_000}},
    }
    assert "/exports/w1 1,000 as the log says /exports/w2 999 1 double-spend, 2,000 index-mismatch" in _text(exports=exports)
    hole = {"undecided_from_offset": 7_000, "undecided_entries": 2, "undecided_requests": 30, "undecided_because": "no <payload>"}
    text = _text(exports=exports, **hole)
    assert "as the log says, as far as that is decided" in text
    assert "from ordering offset 7,000 on, 2 entries with 30 requests: no <payload>." in text
    assert "None was compared." in _text()


def test_violations_are_drawn() -> None:
    """The page draws the violations by type and by place in the log; it reports how many have no place or are not in the table."""
    said = {**SAID, "violations": {"bad-signature": 100, "sequence-gap": 2}}
    moments = [Moment({**NONE, "committed": 2}, 1.0, 9.0, 0, 0), Moment(NONE, None, None, None, None)]
    row = Row(type="bad-signature", position=1, offset=9, id=None, found="this", expected="that")
    drawn = page(said, Series(0, 1_000, moments, {0: 2}), [row], {"bad-signature": [99, 1], "sequence-gap": [0, 1]})
    found = Reader(drawn).text
    assert {"bad-signature: 99", "bad-signature: 1", "sequence-gap: 1"} <= set(found)
    assert "1 violation of no ordering record and no decision, so of no time." in found
    assert any(each.startswith("101 more are in ") for each in found)


def test_settled_differences_are_shown() -> None:
    """Settled differences are in a table of their own, with the number left out, and the page reports no violation."""
    shown = {"offset": 7, "offset_last": 9, "records": 3, "found": "a view of 5 <records>", "expected": "another"}
    settled = {"writers": 3, "records": 1_002, "shown": [shown, {**shown, "offset": 8}]}
    found = _texts(settled=settled)
    assert {"Settled differences", "no violation", "7", "8", "9", "3", "a view of 5 <records>"} <= set(found)
    assert any(each.startswith("1,002 records of 3 writers had another history.") for each in found)
    assert "1 more writer is not listed." in found
    assert "Settled differences" not in _text()


def test_files_that_no_range_lists_are_shown() -> None:
    """If the last ranges of an archive are gone, only such files show that the log went on."""
    assert "no range lists 2 of the <files>." in _text(unlisted="no range lists 2 of the <files>")


def test_what_a_salvage_and_the_owner_gave_is_shown() -> None:
    """The page shows restored positions by their form, and missing offsets that the owner has confirmed."""
    text = _text(salvaged={"decisions": 1_234, "hashes": 2, "lost": 3}, gaps_settled=5)
    assert "restored by salvages 1,234 decisions, 2 hashes, 3 lost" in text
    assert "5 runs of offsets have no record." in text
    assert "restored by salvages" not in _text()


def test_an_empty_log_has_a_page() -> None:
    """An empty log has a page too, which says that it is empty."""
    nothing = {**SAID, "decisions": 0, "outcomes": dict.fromkeys(OUTCOMES.values(), 0), "violations": {}}
    found = Reader(page(nothing, EMPTY, [], {}))
    assert "Nothing was asked: there is nothing to draw." in found.text
    assert "no violation" in found.text
    assert "svg" not in found.tags


@pytest.mark.spark
def test_bins_are_bounded(spark: SparkSession) -> None:
    """For any time span there are no more bins than `BINS`, and each decision and batch is in one of them."""
    entries = spark.range(1_000).select(
        (F.col("id") * F.col("id") * 77 + 5).alias("log_time_ms"),
        (F.col("id") % 9).alias("count"),
        (F.col("id") + 50).alias("offset"),
        F.col("id").alias("append_time_ms"),
        (F.col("id") + (F.col("id") % 3 - 1) * 40).alias("content_append_time_ms"),
    )
    decisions = entries.select(
        "log_time_ms", F.when(F.col("count") == 0, 1).otherwise(0).alias("outcome"), (F.col("offset") * 2).alias("position")
    )
    found = series(decisions, entries)
    assert found.start_ms == 5
    assert 100 < len(found.moments) <= BINS
    assert (len(found.moments) - 1) * found.width_ms <= 999 * 999 * 77 < len(found.moments) * found.width_ms
    assert sum(each.outcomes["committed"] for each in found.moments) == 888
    assert sum(each.outcomes["input-conflict"] for each in found.moments) == 112
    assert found.batch_sizes == {-1: 112, 0: 111, 1: 222, 2: 444, 3: 111}
    assert found.moments[0].apart_ms_p99 == 40
    assert (found.moments[0].offset_first, found.moments[0].position_first) == (50, 100)
    assert {each.position_first for each in found.moments} == {each.offset_first and each.offset_first * 2 for each in found.moments}


@pytest.mark.spark
def test_violations_lie_where_their_records_do(spark: SparkSession) -> None:
    """A violation is drawn at its offset, else at its position; before or behind all batches it is in the first or last bin."""
    moments = [Moment(NONE, None, None, *firsts) for firsts in ((10, 100), (None, None), (20, 200), (25, None), (30, 300), (None, None))]
    placed = [(0, None), (10, None), (19, 300), (20, 0), (26, 0), (99, None), (None, 5), (None, 299), (None, 10**12), (None, None)]
    rows = [("a", *each) for each in placed] + [("b", None, None), ("c", 20, None)] * 2
    found = violations_over_time(spark.createDataFrame(rows, "type string, offset bigint, position bigint"), moments)
    assert found == {"a": [4, 0, 2, 1, 2, 0], "c": [0, 0, 2, 0, 0, 0]}
    assert violations_over_time(spark.createDataFrame(rows, "type string, offset bigint, position bigint"), []) == {}


@pytest.mark.spark
def test_one_batch_is_one_bin(spark: SparkSession) -> None:
    """Log times that are all equal, and a batch whose content has no time, make one bin."""
    entries = spark.createDataFrame(
        [(7, 3, 7, None, 9)], "log_time_ms bigint, count bigint, append_time_ms bigint, content_append_time_ms bigint, offset bigint"
    )
    decisions = spark.createDataFrame([(7, 0, 4)], "log_time_ms bigint, outcome int, position bigint")
    assert series(decisions, entries) == Series(7, 1, [Moment({**NONE, "committed": 1}, None, None, 9, 4)], {1: 1})


@pytest.mark.spark
def test_append_times_are_any_longs(spark: SparkSession) -> None:
    """Nobody has checked the times of an archive: their difference may be no long."""
    rows = [(7, 1, 2**63 - 1, -1, 1), (7, 1, -(2**63), 2**63 - 1, 2), (7, 1, 5, -(2**63), 3)]
    columns = "log_time_ms bigint, count bigint, append_time_ms bigint, content_append_time_ms bigint, offset bigint"
    decisions = spark.createDataFrame([], "log_time_ms bigint, outcome int, position bigint")
    (found,) = series(decisions, spark.createDataFrame(rows, columns)).moments
    assert (found.apart_ms_p50, found.apart_ms_p99) == (2.0**63, 2.0**64)


@pytest.mark.spark
def test_no_batch_is_no_bin(spark: SparkSession) -> None:
    """An empty log has no bins."""
    entries = spark.createDataFrame([], "log_time_ms bigint, count bigint, append_time_ms bigint, content_append_time_ms bigint")
    assert series(spark.createDataFrame([], "log_time_ms bigint, outcome int"), entries) == EMPTY


@pytest.mark.parametrize(("at_ms", "text"), [(0, "1970-01-01 00:00:00 UTC"), (2**62, f"{2**62} ms"), (-1, "1969-12-31 23:59:59 UTC")])
def test_moments_that_no_calendar_has(at_ms: int, text: str) -> None:
    """A log time outside the calendar is shown as a number."""
    assert moment(at_ms) == text


def boxes(drawn: str) -> list[tuple[float, float]]:
    """Returns the width and height of each bar, in the order of the page."""
    corners = re.findall(r'd="M ([\d.]+) ([\d.]+) L ([\d.]+) [\d.]+ L [\d.]+ ([\d.]+) L [\d.]+ [\d.]+ z', drawn)
    return [(float(right) - float(left), abs(float(bottom) - float(top))) for left, top, right, bottom in corners]


def test_bars_stand_on_each_other() -> None:
    """Heights are in proportion, the highest sum fits, and a name is escaped in the tooltip."""
    drawn = stacked("T", "u", {"a<": [1, 0], "b": [3, 2]}, time_ticks(0, 10_000), "axis")
    first, high, middle = [height for _, height in boxes(drawn)]
    assert high == pytest.approx(3 * first, abs=0.2)
    assert middle == pytest.approx(2 * first, abs=0.2)
    assert first + high <= 240
    assert "<title>a&lt;: 1</title>" in drawn
    Reader(drawn)


def test_few_among_many_are_seen() -> None:
    """The longest bar and the highest of a lane fill their space, and one among a hundred million still has a width and a height."""
    drawn = bars("T", "u", {"a<": 100_000_000, "b": 1})
    widths = [width for width, _ in boxes(drawn)]
    assert widths[0] > 500 * widths[1] / 2 > 0
    assert {"a<", "100,000,000", "1"} <= set(Reader(drawn).text)
    drawn = lanes("T", "u", {"a": [100_000_000, 0, 1], "b": [0, 2, 0]}, time_ticks(0, 10_000), "axis")
    many, few, other = [height for _, height in boxes(drawn)]
    assert many == pytest.approx(other)
    assert many > few > 0
    Reader(drawn)


def test_lines_have_gaps() -> None:
    """A line ends where there is no value, and a single value is visible."""
    drawn = lines("T", "u", {"a": [1.0, None, 2.0, 3.0]}, time_ticks(0, 10_000), "axis")
    paths = [re.findall(r"([ML]) ([\d.]+)", path) for path in re.findall(r'd="([^"]+)" class="l0"', drawn)]
    joined, alone = paths
    assert [command for command, _ in joined] == ["M", "M", "L"]
    assert float(alone[1][1]) - float(alone[0][1]) > 2
    Reader(drawn)


def test_plots_are_drawn_by_need_and_alike() -> None:
    """Two pages of the same numbers are the same bytes, and only drawing imports matplotlib."""
    code = "import sys, spark_join.commands; sys.exit('matplotlib' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run([sys.executable, "-P", "-c", code], env=environment, check=False).returncode == 0
    points: dict[str, list[float | None]] = {"$a$": [1.0, 2.0], "b": [None, 3.0]}
    assert lines("T", "u", points, time_ticks(0, 10_000), "$x$") == lines("T", "u", points, time_ticks(0, 10_000), "$x$")
