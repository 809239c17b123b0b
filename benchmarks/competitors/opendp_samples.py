"""OpenDP's discrete Laplace noise, vector path: samples a second.

`benchmarks.speed.samplers` runs it in a separate environment.
"""

import json

import opendp.prelude as dp
from timing import measure_rate

dp.enable_features("contrib")
N = 20_000

figures = {}
for scale in (1, 16, 160, 1600):
    noise = dp.m.make_laplace(
        dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64"), scale=float(scale)
    )
    zeros = [0] * N
    figures[f"scale_{scale}"] = measure_rate(lambda noise=noise, zeros=zeros: noise(zeros), N)
print(json.dumps(figures))
