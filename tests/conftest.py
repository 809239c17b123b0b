"""Fixtures and checks for all tests: seeded entropy, and the sum of false-positive rates."""

from __future__ import annotations

import os
import signal
import zlib

import pytest
from hypothesis import HealthCheck, settings

from shoal.entropy import SeededEntropy, SystemEntropy
from tests.statistical.harness import BUDGET

# Examples are fixed, or fresh with SHOAL_FRESH_SEEDS=1.
settings.register_profile(
    "shoal",
    deadline=None,
    derandomize=not os.environ.get("SHOAL_FRESH_SEEDS"),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shoal")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "statistical(alpha): false-positive rate of a test of a distribution"
    )
    config.addinivalue_line(
        "markers",
        "untraced: takes long and runs no branch that no other test runs, so `make check` does "
        "not trace it",
    )
    # The workers of xdist and all programs of tests inherit this. With a thread of BLAS and OpenMP
    # for each core in each of them, threads wait busily for a core: one test took 36 s, not 1 s.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    # A shell ignores SIGINT for background jobs, and nohup ignores SIGHUP. Child processes inherit
    # that, and tests that interrupt them would wait for ever.
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    total = sum(
        marker.kwargs["alpha"] for item in items for marker in item.iter_markers("statistical")
    )
    if total > BUDGET:
        raise pytest.UsageError(
            f"the declared false-positive rates add up to {total:.2g}, more than {BUDGET:g}"
        )


@pytest.fixture
def entropy(request: pytest.FixtureRequest) -> SeededEntropy:
    """Return a random stream for one test: fixed, or fresh with SHOAL_FRESH_SEEDS=1.

    The seed is printed, so that a failure can be repeated.
    """
    seed = zlib.crc32(request.node.nodeid.encode())
    if os.environ.get("SHOAL_FRESH_SEEDS"):
        seed = SystemEntropy().below(1 << 32)
    print(f"entropy: SeededEntropy({seed})")
    return SeededEntropy(seed)
