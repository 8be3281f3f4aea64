"""The one exception of this package; other packages use it too."""


class CannotRun(Exception):
    """An operation failed. The message names the operation, the value and a remedy."""
