"""No core dumps: the memory of a coordinator has keys and answers that are nowhere on the disk, and that of a relay who sends."""

from __future__ import annotations

import resource


def forbid_core_dumps() -> None:
    """Have this process, and those that it starts, leave no memory behind on the disk when they crash."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
