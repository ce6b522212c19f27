"""Fixtures that several areas share: the real embedded server and the real engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine.platform import preload_blas

preload_blas()  # before any test module imports mlx

if TYPE_CHECKING:
    from deploy.embedded import EmbeddedValkey
    from engine import Engine


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--repetitions", type=int, default=2, help="how often a test of random faults is run (2)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "new_worker" in getattr(item, "fixturenames", ()):  # a worker in this process uses SIGALRM itself
            item.add_marker(pytest.mark.timeout(300, method="thread"))


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """A Valkey server of this test's own, empty, on a unix socket."""
    from deploy.embedded import EmbeddedValkey

    with EmbeddedValkey(tmp_path / "valkey", tmp_path / "v.sock") as server:
        yield server


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The real engine on the built-in model, loaded once for the whole run."""
    from engine import Engine

    return Engine.load("smollm2-135m")
