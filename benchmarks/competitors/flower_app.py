"""Flower's part of the comparison: a logistic model of 387 weights by FedAvg.

`benchmarks.speed.flower` copies this file into an app of Flower. A message to a client is one
update: the gradient of ten rows at the received weights, as on a device of DDML, but without noise.
"""

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

N_WEIGHTS, N_ROWS, LEARNING_RATE = 387, 10, 0.1

# Flower searches for these lines without running them.
client = ClientApp()
server = ServerApp()


@client.train()
def train(message, context):
    generator = np.random.default_rng(context.node_config["partition-id"])
    rows, labels = generator.random((N_ROWS, N_WEIGHTS)), generator.integers(0, 2, N_ROWS)
    weights = message.content["arrays"].to_numpy_ndarrays()[0]
    gradient = (1 / (1 + np.exp(-(rows @ weights))) - labels) @ rows / N_ROWS
    moved = ArrayRecord([weights - LEARNING_RATE * gradient])
    return Message(
        RecordDict({"arrays": moved, "metrics": MetricRecord({"num-examples": N_ROWS})}),
        reply_to=message,
    )


@server.main()
def main(grid, context):
    seen = Path(context.run_config["seen"])

    def note(number, _):
        """Record the end of a round; round 0 is the start."""
        with seen.open("a") as out:
            out.write(f"{number}\n")

    n = context.run_config["nodes"]
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)
    start = ArrayRecord([np.zeros(N_WEIGHTS)])
    strategy.start(
        grid=grid, initial_arrays=start, num_rounds=context.run_config["rounds"], evaluate_fn=note
    )
