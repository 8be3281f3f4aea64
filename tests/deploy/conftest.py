"""Fixtures: the Kubernetes manifests, rendered once; the tools that check them; three sites on this machine."""

import shutil
from collections.abc import Iterator

import pytest

from deploy.manifests import KUBERNETES, OVERLAYS, Manifest, Schemas, Tools, fetch, render
from tests.deploy.installed import Installed
from tests.deploy.scraped import Scraped, scraped
from tests.deploy.sites import installed_sites

DELAY_MS = 1.0
"""The delay between two sites, each way."""


@pytest.fixture(scope="session")
def tools() -> Tools:
    """The tools; missing ones are downloaded and built, which takes minutes."""
    if shutil.which("go") is None:
        pytest.fail("these tests need Go 1.25 or newer on the PATH: install it, or leave them out with `-m 'not go'`", pytrace=False)
    return fetch()


@pytest.fixture(scope="session")
def schemas(tools: Tools) -> Schemas:
    """The schemas of all kinds."""
    return Schemas(tools.crds)


@pytest.fixture(scope="session")
def rendered(tools: Tools) -> dict[str, list[Manifest]]:
    """The objects of each overlay."""
    return {overlay: render(tools, KUBERNETES / overlay) for overlay in OVERLAYS}


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A worker that is ready."""
    with scraped(tmp_path_factory.mktemp("scraped") / "notary") as running:
        yield running


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Three sites with mutual TLS, a worker in each, all ready. Nothing here depends on the distance between them."""
    with installed_sites(tmp_path_factory.mktemp("sites"), DELAY_MS) as made:
        yield made
