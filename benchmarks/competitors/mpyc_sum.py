"""MPyC's secure sum of many integers: processor seconds of a party.

`benchmarks.speed.sdq` runs it in a separate environment. Each of ten processes on loopback
contributes one vector, and the sums are opened to party 0. With ``-M10`` MPyC starts the other nine
processes.
"""

import json
import time

import numpy as np
from mpyc.runtime import mpc

N, REPEATS = 10_000, 5


async def time_sum(number, values):
    """Return the processor time of the parties for one sum, opened to party 0."""
    await mpc.barrier()
    start = time.process_time()
    shared = mpc.input(number.array(values))
    total = shared[0]
    for one in shared[1:]:
        total = total + one
    opened = await mpc.output(total, receivers=0)
    took = time.process_time() - start
    if mpc.pid == 0:
        assert [int(x) for x in opened[:5]] == [len(shared) * int(x) for x in values[:5]]
    return await mpc.transfer(took)


async def main():
    await mpc.start()
    kinds = {"integers": mpc.SecInt(64), "field": mpc.SecFld(modulus=2**61 - 1)}
    values = np.arange(N) % 1000
    figures = {}
    for name, number in kinds.items():
        runs = [await time_sum(number, values) for _ in range(REPEATS + 1)][1:]
        figures[name] = min(sum(run) / len(run) for run in runs)
    if mpc.pid == 0:
        print(json.dumps(figures), flush=True)
    await mpc.shutdown()


mpc.run(main())
