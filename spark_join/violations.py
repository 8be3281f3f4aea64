"""Rows of `violations/`, one for each violation (docs/spark.md, What it writes), and the text of values in them."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_join.constants import OUTCOMES
from spark_join.engine.columns import part, unsigned

VIOLATION: Final = (
    "type string, position bigint, offset bigint, id string, found string, expected string, source string,"
    " offset_last bigint, records bigint"
)
"""The schema of a violation in the log or in an export: its position or ordering offset, the value found, and the value expected.

A row that stands for several records has the offset of the last one, and their number."""

LOG: Final = "log"
"""The `source` of a violation in the log; for one in an export it is the absolute path of the export's folder."""
CONFLICTS_SHOWN = 3


def violations(frame: DataFrame, type_: Column, **computed: Column) -> DataFrame:
    """Returns a row of `VIOLATION` for each row of `frame`: with the `computed` columns, and else with those of `frame`.

    A column that neither has is null; `source` is the log then.
    """
    columns = {"source": F.lit(LOG)} | {name: F.col(name) for name in frame.columns} | computed | {"type": type_}
    schema = [column.split() for column in VIOLATION.split(", ")]
    return frame.select(*[columns.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in schema])


def render_hex(octets: Column) -> Column:
    """Renders bytes as lower-case hex digits."""
    return F.lower(F.hex(octets))


def render_state(state: Column) -> Column:
    """Renders a state reference, 36 bytes: transaction id in hex, colon, index."""
    return F.format_string("%s:%s", render_hex(part(state, 0, 32)), unsigned(part(state, 32, 4)))


def render_outcome(side: str) -> Column:
    """Renders the outcome of the decision in the column `side`: committed, or the reason of the rejection."""
    outcome = F.col(f"{side}.outcome")
    name = F.element_at(F.create_map(*[F.lit(each) for pair in OUTCOMES.items() for each in pair]), outcome)
    return F.coalesce(name, F.format_string("outcome %s", outcome))


def render_conflicts(side: str) -> Column:
    """Renders the conflicts of the decision in the column `side`: their number, and the first `CONFLICTS_SHOWN` of them."""
    conflicts = F.col(f"{side}.conflicts")
    shown = F.transform(
        F.slice(conflicts, 1, CONFLICTS_SHOWN),
        lambda met: F.format_string("%s consumed by %s", render_state(met["state"]), render_hex(met["consumed_by"])),
    )
    count = F.format_string("%s conflicts", F.size(conflicts))
    return F.concat_ws(": ", count, F.when(F.size(conflicts) > 0, F.array_join(shown, ", ")))


def render_consumed(side: str, twice: Column) -> Column:
    """Renders the column `state` and the transaction that consumed it: the column `side`, with id and position, null if none did.

    `twice` is true for a duplicate row.
    """
    by = F.format_string("consumed by %s at position %s", render_hex(F.col(f"{side}.id")), f"{side}.position")
    consumed = F.when(F.col(side).isNull(), "not consumed").when(twice, F.concat(F.lit("again "), by)).otherwise(by)
    return F.format_string("%s %s", render_state(F.col("state")), consumed)
