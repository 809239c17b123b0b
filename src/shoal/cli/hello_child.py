"""A process of the demonstration: a module of shoal run as a program, which ends when the process that started it does.

``python -m shoal.cli.hello_child MODULE WORDS...``. Standard input is a pipe whose other end the parent holds for as long as it lives: so
that nothing is left behind, not even by a parent that was killed.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

GRACE_SECONDS = 5.0
"""So long it may finish what it is at."""


def follow(pipe: int) -> None:
    """Wait for the end of a pipe; then end this process, at first in good order."""
    while os.read(pipe, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    _, module, *words = sys.argv
    threading.Thread(target=follow, args=(0,), daemon=True).start()
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
