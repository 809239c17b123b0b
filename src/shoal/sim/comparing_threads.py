"""One thread for linear algebra: where several processes work, or a time is taken, more of them only wait for each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""What libraries read when they are loaded; an own value of the user is left as it is."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let this process, and those that it starts meanwhile, use one thread each: idle ones spin while they wait."""
    set_here = [name for name in _LIMITS if name not in os.environ]
    os.environ.update(dict.fromkeys(set_here, "1"))
    try:
        with _limited():
            yield
    finally:
        for name in set_here:
            os.environ.pop(name, None)


def _limited() -> AbstractContextManager[object]:
    """A limit for the libraries that are loaded already, which do not read their environment again."""
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError:
        return nullcontext()
    return threadpool_limits(1)  # type: ignore[no-any-return]
