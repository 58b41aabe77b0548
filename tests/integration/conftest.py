"""Fixtures of the tests over the whole path."""

from collections.abc import Iterator

import pytest

from headrace.cli.fleet import Fleet
from tests.integration.service import Service, start_service


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """One for a module; its tests must leave it as they found it."""
    with Fleet() as fleet:
        yield start_service(fleet)


@pytest.fixture
def own_service() -> Iterator[Service]:
    """One that the test may break; equal requests are spread over both engines."""
    with Fleet() as fleet:
        yield start_service(fleet, "--policy", "least_loaded")
