"""Log lines of a worker and of its acceptor processes, to stderr: text for people, or one JSON object a line for a log store.

A call names its fields in the format: `logger.info("parties read file=%s parties=%d", file, count)`. Text is formatted as usual.
In JSON, each `name=%…` becomes a member of the object, a number stays a number, and `message` is the rest of the sentence.
"""

import logging
import re
import sys
import threading
import types
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
import orjson

logger = logging.getLogger("notary")

_TEXT: Final = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
_RESERVED: Final = frozenset({"time", "level", "logger", "message", "exception"})
_CONVERSION: Final = re.compile(
    r"(?P<field>[ ,]*(?<![^ ,])(?P<name>[a-z][a-z0-9_]*)=)?(?P<conversion>%[-#0 +]*[0-9]*(?:\.[0-9]+)?[diouxXeEfFgGcrsa])|%%"
)


class LoggingSettings(msgspec.Struct, frozen=True):
    """Which log lines are written, and how."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"


def set_up_logging(level: str, *, as_json: bool) -> None:
    """Write log lines of this level and above to stderr. With `as_json`, Python's warnings and uncaught errors become log lines too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else logging.Formatter(_TEXT))
    logging.basicConfig(handlers=[handler], force=True)
    set_level(level)
    if as_json:
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_in_thread
        sys.unraisablehook = _log_unraisable


def set_level(level: str) -> None:
    """Set the level of all loggers. aiokafka's own lines are written only at level `debug`, and only from INFO up."""
    logging.getLogger().setLevel(level.upper())
    # While a broker is away, aiokafka repeats at INFO and WARNING, many times a second, what our own lines report better.
    # Its DEBUG lines, one or more a request, would bury ours.
    logging.getLogger("aiokafka").setLevel(logging.INFO if level == "debug" else logging.CRITICAL)
    # uvloop has a warning for each answer to a client that is gone, and one client may have sent thousands of calls.
    logging.getLogger("asyncio").setLevel(logging.ERROR)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message, fields = _apart(record)
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
            **fields,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line).decode()
        except orjson.JSONEncodeError:
            # A number of more than 64 bits, or text that is no valid Unicode, such as a file name, must not lose the line.
            return orjson.dumps({name: str(value).encode(errors="backslashreplace").decode() for name, value in line.items()}).decode()


def _apart(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    """Splits a line into its sentence and its fields. A line in another format has no fields."""
    given, fields, at = record.args, {}, 0
    if not isinstance(record.msg, str) or not isinstance(given, tuple) or not given:
        return record.getMessage(), {}
    conversions = [found for found in _CONVERSION.finditer(record.msg) if found["conversion"]]
    names = [found["name"] for found in conversions if found["name"]]
    if len(conversions) != len(given) or len(set(names)) != len(names) or not _RESERVED.isdisjoint(names):
        return record.getMessage(), {}
    arguments = iter(given)
    sentence = ""
    for found in _CONVERSION.finditer(record.msg):
        sentence += record.msg[at : found.start()]
        at = found.end()
        if not found["conversion"]:
            sentence += "%"
        elif found["name"]:
            fields[found["name"]] = _plain(next(arguments))
        else:
            sentence += (found["field"] or "") + found["conversion"] % (next(arguments),)
    sentence += record.msg[at:]
    return (sentence.strip(" ,:") if fields else sentence), fields


def _plain(value: object) -> object:
    """Returns a value that JSON can represent unchanged, and any other value as text."""
    is_plain = value is None or isinstance(value, bool | int) or (isinstance(value, float) and abs(value) < float("inf"))
    return value if is_plain else str(value)


def _log_uncaught(kind: type[BaseException], problem: BaseException, trace: types.TracebackType | None) -> None:
    logger.critical("ended by an unexpected error: %r", problem, exc_info=(kind, problem, trace))


def _log_uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    logger.error("a thread ended by an unexpected error: %r", arguments.exc_value, exc_info=arguments.exc_value)


def _log_unraisable(arguments: "sys.UnraisableHookArgs") -> None:
    logger.error("an error in a destructor or callback was ignored: %r", arguments.exc_value, exc_info=arguments.exc_value)
