"""pure-ldp's reports a second, one report per call, and its aggregation.

`benchmarks.speed.samplers` runs it in a separate environment.
"""

import json

import numpy as np
from pure_ldp.frequency_oracles import DEClient, DEServer, UEClient, UEServer
from timing import measure_rate

EPSILON = 1.0


def collect(server, reports, m):
    server.reset()
    for report in reports:
        server.aggregate(report)
    return server.estimate_all(range(1, m + 1), suppress_warnings=True)


figures = {}
for m, n in ((16, 10_000), (1024, 4_000)):
    values = [int(v) for v in np.random.default_rng(0).integers(1, m + 1, n)]
    pairs = {
        "random_response": (DEClient(EPSILON, m), DEServer(EPSILON, m)),
        "rappor": (UEClient(EPSILON, m, use_oue=False), UEServer(EPSILON, m, use_oue=False)),
        "pq": (UEClient(EPSILON, m, use_oue=True), UEServer(EPSILON, m, use_oue=True)),
    }
    for name, (client, server) in pairs.items():
        reports = [client.privatise(v) for v in values]
        figures[f"{name}_{m}_client"] = measure_rate(
            lambda c=client, v=values: [c.privatise(x) for x in v], n
        )
        figures[f"{name}_{m}_aggregate"] = measure_rate(
            lambda s=server, r=reports, m=m: collect(s, r, m), n
        )
print(json.dumps(figures))
