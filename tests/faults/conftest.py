"""The queue's fixtures, and how often the tests of random faults are repeated."""

import pytest
from queue_fixtures import client, drain, held, new_worker, redis, settings_for, start_worker

__all__ = ["client", "drain", "held", "new_worker", "redis", "settings_for", "start_worker"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes a `seed` is run once for each of the first `--repetitions`."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("repetitions")))
