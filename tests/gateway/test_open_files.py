import resource
from collections.abc import Iterator

import pytest

from headrace.gateway.open_files import allow_connections


@pytest.fixture
def limit() -> Iterator[int]:
    """The soft limit, well below the hard one; given back afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1024:
        pytest.skip("the system's limit is too low to be raised")
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield 512
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_is_raised_to_what_the_connections_take(limit: int) -> None:
    assert allow_connections(num_clients=500, num_upstream=200) == 956 > limit
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 956


def test_a_limit_that_is_high_enough_stays(limit: int) -> None:
    assert allow_connections(num_clients=100, num_upstream=100) == limit


def test_what_the_system_does_not_allow_is_said(limit: int, caplog: pytest.LogCaptureFixture) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        pytest.skip("the system sets no limit")

    assert allow_connections(num_clients=hard, num_upstream=limit) == hard
    assert "ulimit -n" in caplog.text
