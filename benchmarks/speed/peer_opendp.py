"""OpenDP's discrete Laplace noise, vector path: samples a second. Run by `samplers` in an environment of its own."""

import json
import time

import opendp.prelude as dp

dp.enable_features("contrib")
N = 20_000

figures = {}
for scale in (1, 16, 160, 1600):
    noise = dp.m.make_laplace(dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64"), scale=float(scale))
    zeros = [0] * N
    runs = []
    for _ in range(5):
        start = time.process_time()
        noise(zeros)
        runs.append(time.process_time() - start)
    figures[f"scale_{scale}"] = N / min(runs)
print(json.dumps(figures))
