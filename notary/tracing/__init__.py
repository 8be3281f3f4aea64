"""tracing: OpenTelemetry spans of a share of the submissions (docs/metrics.md, Traces).

A worker that does not trace needs no OpenTelemetry and imports none of it: `tracing_of` alone imports `spans`.
"""

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from ordering.errors import ConfigurationError
from ordering.settings import Positive

if TYPE_CHECKING:
    from notary.tracing.spans import Tracing


class TracingSettings(Struct, frozen=True):
    """`[tracing]`: the endpoint for spans (empty: no tracing), and the share of submissions that are traced."""

    endpoint: str = ""
    ratio: Annotated[float, Meta(ge=0, le=1, description="the share of submissions that are traced")] = 0.01
    queue_spans_max: Positive = 8_192


def tracing_of(settings: TracingSettings, notary_name: str, worker_name: str) -> "Tracing | None":
    """Returns the tracing that the settings ask for; None without it. Raises `ConfigurationError` if OpenTelemetry is missing."""
    if not settings.endpoint:
        return None
    try:
        from notary.tracing.spans import Tracing
    except ImportError as problem:
        raise ConfigurationError(
            f"`[tracing] endpoint` is set, and OpenTelemetry is not installed ({problem}): pip install 'kafka-notary[traces]'"
        ) from None
    return Tracing(settings, notary_name, worker_name)
