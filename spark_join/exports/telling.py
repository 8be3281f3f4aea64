"""Renders values as text for the columns `found` and `expected` of a violation."""

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_join.constants import OUTCOMES
from spark_join.engine.octets import part, unsigned

CONFLICTS_SHOWN = 3


def tell_hex(octets: Column) -> Column:
    """Renders bytes as lower-case hex digits."""
    return F.lower(F.hex(octets))


def tell_state(state: Column) -> Column:
    """Renders a state reference, 36 bytes: transaction id in hex, colon, index."""
    return F.concat(tell_hex(part(state, 0, 32)), F.lit(":"), unsigned(part(state, 32, 4)).cast("string"))


def tell_outcome(side: str) -> Column:
    """Renders the outcome of the decision in the column `side`: committed, or the reason of the rejection."""
    outcome = F.col(f"{side}.outcome")
    name = F.element_at(F.create_map(*[F.lit(each) for pair in OUTCOMES.items() for each in pair]), outcome)
    return F.coalesce(name, F.concat(F.lit("outcome "), outcome.cast("string")))


def tell_conflicts(side: str) -> Column:
    """Renders the conflicts of the decision in the column `side`: their number, and the first `CONFLICTS_SHOWN` of them."""
    conflicts = F.col(f"{side}.conflicts")
    shown = F.transform(
        F.slice(conflicts, 1, CONFLICTS_SHOWN),
        lambda met: F.concat(tell_state(met["state"]), F.lit(" consumed by "), tell_hex(met["consumed_by"])),
    )
    count = F.concat(F.size(conflicts).cast("string"), F.lit(" conflicts"))
    return F.concat_ws(": ", count, F.when(F.size(conflicts) > 0, F.array_join(shown, ", ")))


def tell_consumed(side: str, twice: Column) -> Column:
    """Renders the column `state` and the transaction that consumed it: the column `side`, with id and position, null if none did.

    `twice` is true for a duplicate row.
    """
    by = F.concat(F.lit(" consumed by "), tell_hex(F.col(f"{side}.id")), F.lit(" at position "), F.col(f"{side}.position").cast("string"))
    said = F.when(F.col(side).isNull(), F.lit(" not consumed")).when(twice, F.concat(F.lit(" again"), by)).otherwise(by)
    return F.concat(tell_state(F.col("state")), said)
