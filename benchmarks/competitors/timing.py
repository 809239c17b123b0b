"""Timing of competing programs, like ours: by processor time."""

import time


def measure_rate(work, amount):
    """Return the amount of work done in a second: the best of five runs after a warm-up."""
    work()
    runs = []
    for _ in range(5):
        start = time.process_time()
        work()
        runs.append(time.process_time() - start)
    return amount / min(runs)
