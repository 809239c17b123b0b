"""Processes of their own that a test can kill at any moment."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

PROCESSES = multiprocessing.get_context("forkserver")


@contextmanager
def child(work: Callable[..., None], *arguments: object) -> Iterator[tuple[Connection, Callable[[], None]]]:
    """A process of its own at the other end of a link, and the way to kill it with SIGKILL; it is gone in any case at the end."""
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=work, args=(*arguments, there), daemon=True)
    process.start()
    there.close()

    def kill() -> None:
        process.kill()
        process.join()

    try:
        yield here, kill
    finally:
        kill()
        process.close()
        here.close()
