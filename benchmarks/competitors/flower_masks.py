"""Flower's SecAgg+ masks: numbers a second.

`benchmarks.speed.sdq` runs it in a separate environment. The seed of a mask, 32 bytes, is folded
into 32 bits, and the Mersenne twister that it starts is predictable.
"""

import json
import os

from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from timing import measure_rate

N, N_MASKS, MODULUS = 10_000, 100, 1 << 32

seeds = [os.urandom(32) for _ in range(N_MASKS)]
print(
    json.dumps(
        {
            "numbers": measure_rate(
                lambda: [pseudo_rand_gen(seed, MODULUS, [(N,)]) for seed in seeds], N * N_MASKS
            )
        }
    )
)
