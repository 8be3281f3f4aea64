"""Cuts the new records of a log into parts that are archived one after the other."""

from collections.abc import Callable, Iterator, Mapping

from spark_join.log.client import Bounds
from spark_join.log.log import ORDERING, Place


def slices(
    wanted: Mapping[Place, Bounds], records_max: int, payload_ends: Callable[[int], Mapping[Place, int]]
) -> Iterator[dict[Place, Bounds]]:
    """Yields the offsets of each part, in the order in which the parts are to be archived, without partitions that are empty in it.

    `payload_ends` returns the ends of the payload partitions for an ordering offset, at the time of that record or a little later. So the
    archive after any part is the log as it once was, with the content of each entry, or with a hole at its end. In the other order, entries
    without a content would look like lost payloads, and workers that replay them would fill them.

    A part has `records_max` offsets at most, or up to one more in each partition. Times cut the payloads into unequal parts, so parts are
    made half as large. If one is too large nevertheless, its payloads come before its entries, in parts of their own.
    """
    offsets = {place: bound.offset_first for place, bound in wanted.items()}
    count = 1 if offsets_in(wanted) <= records_max else -(-2 * offsets_in(wanted) // records_max)
    for number in range(count):
        entries = _part(wanted[ORDERING], number, count)
        ends = {} if number == count - 1 else payload_ends(entries.offset_end)
        payload = {
            place: Bounds(offsets[place], max(offsets[place], min(bound.offset_end, ends.get(place, bound.offset_end))))
            for place, bound in wanted.items()
            if place != ORDERING
        }
        offsets |= {place: bound.offset_end for place, bound in payload.items()}
        together = {ORDERING: entries, **payload}
        if offsets_in(together) <= records_max:
            parts = [together]
        else:
            pieces = -(-offsets_in(payload) // records_max)
            parts = [{place: _part(bound, piece, pieces) for place, bound in payload.items()} for piece in range(pieces)]
            parts.append({ORDERING: entries})
        for part in parts:
            if offsets_in(part):
                yield {place: bound for place, bound in part.items() if bound.offset_first < bound.offset_end}


def offsets_in(bounds: Mapping[Place, Bounds]) -> int:
    """Returns the number of offsets in all partitions together."""
    return sum([bound.offset_end - bound.offset_first for bound in bounds.values()])


def _part(bound: Bounds, number: int, count: int) -> Bounds:
    """Returns part `number` (from 0) of `count` parts of about the same size."""
    length = bound.offset_end - bound.offset_first
    return Bounds(bound.offset_first + length * number // count, bound.offset_first + length * (number + 1) // count)
