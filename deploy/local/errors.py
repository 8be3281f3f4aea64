"""The one exception of this package; other packages use it too."""


class CannotRun(Exception):
    """An operation failed. The message says which one, with which value, and what to do about it."""
