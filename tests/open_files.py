"""Runs something with too few open files, then with one more each time, until there are enough."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def open_files_max(limit: int) -> Iterator[None]:
    """This process opens no file or socket with that number or a larger one in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def lowest_free() -> int:
    """Returns the number that the next opened file gets."""
    os.close(free := os.dup(0))
    return free


def errors_with_few_open_files(do: Callable[[], object], *kinds: type[Exception]) -> list[Exception]:
    """Returns the errors of these kinds until `do` succeeds."""
    free, errors = lowest_free(), list[Exception]()
    while True:
        try:
            with open_files_max(free + len(errors)):
                do()
            return errors
        except kinds as error:
            errors.append(error.with_traceback(None))
