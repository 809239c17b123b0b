"""What a run of DDML shows: its weights, and how far its instances lie apart along the updates."""

from __future__ import annotations

import numpy as np

from shoal.protocols.ddml.merging import Weights, part_of, steady_variance
from shoal.protocols.ddml.model import GLM
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.step import make_step
from shoal.sim.details import Details, classes_of, rounded, weights

N_LOOKS = 40
"""So often the instances are looked at during a run, about."""
_MOST_WEIGHTS = 2_000
"""Of more weights as many, evenly spaced, stand for all."""


def model_weights(model: GLM) -> list[Details]:
    """The largest weights, by the names of their inputs; those of the log-odds of the second of two classes, or of the label itself."""
    classes = model.classes if len(model.weights) > 1 else classes_of(model.schema.label)
    return weights(model.design.names, classes, model.weights.T)


class Looks:
    """How far the instances lay apart after some updates: the variance of each weight over the instances, averaged over the weights.

    Parameters
    ----------
    params
        The study.
    n_updates
        How many updates there will be, about; 0 for no look at all.
    """

    def __init__(self, params: Params, n_updates: int) -> None:
        # A single instance lies nowhere apart.
        self.every = -(-n_updates // N_LOOKS) if params.n_instances > 1 else 0
        self.measured: list[list[float]] = []
        self._stride = max(1, params.n_weights // _MOST_WEIGHTS)
        self._grid = 2.0**-params.fraction_bits

    def __call__(self, n_updates: int, instances: Weights) -> None:
        """Look at the instances ``(k, p)``, k at least 2, in units of the grid."""
        variance = instances[:, :: self._stride].var(axis=0, ddof=1, dtype=np.float64).mean()
        self.measured.append([n_updates, rounded(variance * self._grid**2)])


def spread(params: Params, in_flight: int, looks: Looks) -> Details:
    """What was measured, beside what noise alone would bring about; nothing of a single instance, which has no spread.

    Notes
    -----
    Ref: DDML Theorem 1: k/2 sigma^2, where an update replaces an instance and comes back at once. With s others under way it is
    k (k + s - 1) / (2 (k - 1)) sigma^2; where updates are blended in it is `steady_variance`, and those under way change it by less than a
    hundredth (errata D-07). Gradients, which differ between devices, come on top. Where the step falls over time, sigma is the last one.
    """
    k = params.n_instances
    if k == 1:
        return {}
    sigma = make_step(params, params.last_epoch).deviation * 2.0**-params.fraction_bits
    part = part_of(params.merge)
    expected = k * (k + in_flight - 1) / (2 * (k - 1)) if part == 1 else steady_variance(k, part)
    told = {"sigma_squared": rounded(sigma**2), "expected": rounded(expected * sigma**2)}
    return {"k": k, **told, "measured": looks.measured}
