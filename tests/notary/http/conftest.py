"""A client of the shared worker."""

from collections.abc import Iterator

import pytest

from tests.notary.http.asking import Asking, Wire
from tests.notary.process import NotaryProcess


@pytest.fixture(scope="session")
def asking(worker: NotaryProcess) -> Iterator[Asking]:
    """A client of the shared worker that checks each answer against the OpenAPI document."""
    with Asking(worker.url) as client:
        yield client


@pytest.fixture
def wire(worker: NotaryProcess) -> Iterator[Wire]:
    """A connection to the shared worker."""
    with Wire(worker.url) as connection:
        yield connection
