"""The worker process of a joint computation with programs that only tests run.

With ``allow``, pickle is not removed from it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from shoal.mpyc import worker

N_SELECTIONS = 31
"""As many flags of two bits as a result has room for."""


async def transfer(mpc: Any, shares: tuple[int, ...]) -> int:
    """Send party 0 a Python object from party 1, which MPyC pickles."""
    got = await mpc.transfer("hello" if mpc.pid == 1 else None, senders=[1], receivers=[0])
    return len(got)


async def selections(mpc: Any, shares: tuple[int, ...]) -> int:
    """Run many selections of two bits each."""
    return sum([await worker.select_pair(mpc, ()) << 2 * i for i in range(N_SELECTIONS)])


async def independent(mpc: Any, shares: tuple[int, ...]) -> int:
    """Select twice independently, as in the paper, so that one party may be selected twice."""
    number, flags = mpc.SecInt(42), 0
    for i in range(N_SELECTIONS):
        adds, subtracts = (
            mpc.random.random_unit_vector(number, len(mpc.parties)) for _ in range(2)
        )
        opened = [
            mpc.output(plus + 2 * minus, receivers=party)
            for party, (plus, minus) in enumerate(zip(adds, subtracts, strict=True))
        ]
        flags += int([await flag for flag in opened][mpc.pid]) << 2 * i
    return flags


async def loud(mpc: Any, shares: tuple[int, ...]) -> int:
    """Print, and read from an empty standard input."""
    print("something else", flush=True)
    return len(sys.stdin.read())


async def torrent(mpc: Any, shares: tuple[int, ...]) -> int:
    """Send far more than a pipe can buffer before reading.

    The second party is still sending when it is fed the output of the first.
    """
    line = mpc.parties[1 - mpc.pid].protocol
    line.send(1, bytes((1 + 2 * mpc.pid) << 20))
    return len(await line.receive(1))


async def stuck(mpc: Any, shares: tuple[int, ...]) -> int:
    signal.pause()
    return 0


async def dies(mpc: Any, shares: tuple[int, ...]) -> int:
    os._exit(3)


async def lies(mpc: Any, shares: tuple[int, ...]) -> int:
    """Write bytes to the pipe that are not a frame."""
    for pipe in range(3, 10):
        try:
            os.write(pipe, b"\xff" * 7)
        except OSError:
            continue
    return 0


if __name__ == "__main__":
    worker.PROGRAMS.update(  # type: ignore[attr-defined]
        {
            program.__name__: program
            for program in (transfer, selections, independent, loud, torrent, stuck, dies, lies)
        }
    )
    if "allow" in sys.argv:
        worker.restrict_process = lambda: None
    worker.main()
