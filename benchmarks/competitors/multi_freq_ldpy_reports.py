"""multi-freq-ldpy's reports a second, one report per call, and its aggregation.

`benchmarks.speed.samplers` and `benchmarks.speed.anonml` run it in a separate environment.
"""

import json

import numpy as np
from multi_freq_ldpy.pure_frequency_oracles.GRR import GRR_Aggregator_MI, GRR_Client
from multi_freq_ldpy.pure_frequency_oracles.SS import SS_Aggregator_MI, SS_Client
from multi_freq_ldpy.pure_frequency_oracles.UE import UE_Aggregator_MI, UE_Client
from timing import measure_rate

EPSILON = 1.0


figures = {}
for m, n in ((16, 20_000), (1024, 4_000)):
    values = [int(v) for v in np.random.default_rng(0).integers(0, m, n)]
    clients = {
        "random_response": (
            lambda v, m=m: GRR_Client(v, m, EPSILON),
            lambda r, m=m: GRR_Aggregator_MI(r, m, EPSILON),
        ),
        "rappor": (
            lambda v, m=m: UE_Client(v, m, EPSILON, False),
            lambda r: UE_Aggregator_MI(r, EPSILON, False),
        ),
        "pq": (
            lambda v, m=m: UE_Client(v, m, EPSILON, True),
            lambda r: UE_Aggregator_MI(r, EPSILON, True),
        ),
        "subset_selection": (
            lambda v, m=m: SS_Client(v, m, EPSILON),
            lambda r, m=m: SS_Aggregator_MI(r, m, EPSILON),
        ),
    }
    for name, (client, aggregate) in clients.items():
        reports = [client(v) for v in values]
        figures[f"{name}_{m}_client"] = measure_rate(
            lambda c=client, v=values: [c(x) for x in v], n
        )
        figures[f"{name}_{m}_aggregate"] = measure_rate(lambda a=aggregate, r=reports: a(r), n)
print(json.dumps(figures))
