"""The fields after the `?` of a call. Unknown names are skipped; an invalid value is `Malformed`."""

from urllib.parse import parse_qsl

from ordering.errors import Malformed
from ordering.ids import excerpt

FIELDS_MAX = 100
WAIT_S_MAX = 3_600
"""The largest valid `?wait=`. A worker waits `http.wait_ms_max` at most."""
_YES_OR_NO = {"true": True, "false": False}


def wants_receipts(query: bytes) -> bool:
    """Returns False for `?receipts=false`, which leaves receipts out of an answer."""
    given = _value(query, "receipts")
    if given is None:
        return True
    if given not in _YES_OR_NO:
        raise Malformed(f"true or false is expected, got {excerpt(given)}", "?receipts")
    return _YES_OR_NO[given]


def asked_wait_s(query: bytes) -> int:
    """Returns N of `?wait=N`, the seconds to wait for a decision that is not made yet; 0 without it."""
    given = _value(query, "wait")
    if given is None:
        return 0
    if not given.isascii() or not given.isdigit() or len(given) > 6 or int(given) > WAIT_S_MAX:
        raise Malformed(f"a number of seconds up to {WAIT_S_MAX} is expected, got {excerpt(given)}", "?wait")
    return int(given)


def _value(query: bytes, name: str) -> str | None:
    """Returns the last value of that name; None without one."""
    if not query:
        return None
    try:
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise Malformed(f"more than {FIELDS_MAX} fields after the ?") from None
    return dict(fields).get(name)
