"""How many hostile inputs each loader's test gets: some hundreds in ``make test``, 100,000 in ``make soak``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


def hostile(quick: int = 200) -> settings:
    """Settings for a test with generated hostile input; ``SHOAL_FUZZ_EXAMPLES`` says how many instead of ``quick``."""
    n_examples = int(os.environ.get("SHOAL_FUZZ_EXAMPLES", str(quick)))
    return settings(max_examples=n_examples, deadline=None, suppress_health_check=list(HealthCheck))
