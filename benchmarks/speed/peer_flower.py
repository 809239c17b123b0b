"""Flower's SecAgg+ masks: numbers a second. Run by `sdq` in an environment of its own.

A mask's seed of 32 bytes is folded into 32 bits, and the Mersenne twister that it starts is not made to be hard to predict.
"""

import json
import os

from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from peer_timing import best

N, N_MASKS, MODULUS = 10_000, 100, 1 << 32

seeds = [os.urandom(32) for _ in range(N_MASKS)]
print(json.dumps({"numbers": best(lambda: [pseudo_rand_gen(seed, MODULUS, [(N,)]) for seed in seeds], N * N_MASKS)}))
