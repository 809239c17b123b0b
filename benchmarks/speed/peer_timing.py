"""How the other programs are timed: as ours, by processor time, the best of some runs after one to warm up."""

import time


def best(work, amount):
    """Amount of work done in a second."""
    work()
    runs = []
    for _ in range(5):
        start = time.process_time()
        work()
        runs.append(time.process_time() - start)
    return amount / min(runs)
