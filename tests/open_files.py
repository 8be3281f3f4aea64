"""Runs something with too few open files, then with one more each time, until there are enough."""

import os
import resource
from collections.abc import Callable


def errors_with_few_open_files(do: Callable[[], object], *kinds: type[Exception]) -> list[Exception]:
    """Returns the errors of these kinds until `do` succeeds. The limit is that of this process, and is restored after each attempt."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))
    errors: list[Exception] = []
    while True:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + len(errors), hard))
        try:
            do()
            return errors
        except kinds as error:
            errors.append(error.with_traceback(None))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
