"""The one exception of this room."""


class CouldNotVerify(Exception):
    """Nothing can be said of this log. The message says what stands in the way, which value, and what to do about it."""
