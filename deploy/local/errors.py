"""The one exception of this room."""


class CannotRun(Exception):
    """The cluster cannot do what was asked. The message says what, with which value, and what to do about it."""
