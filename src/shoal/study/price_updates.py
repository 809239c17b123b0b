"""What a device's updates cost in a DDML study, and what can be said about their noise before any is sent."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from shoal.names import counted
from shoal.protocols.ddml.analysis import course, internal_loss, paper_factors
from shoal.protocols.ddml.merging import part_of
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.step import make_step, price
from shoal.study.parts import Release
from shoal.study.priced import Forecast, unpriceable
from shoal.study.spec import Study

Floats = npt.NDArray[np.float64]

_LATE = 100
"""Further updates to an instance after which the late reader of a note comes."""

USELESS_FROM = 2.0
"""Noise in a weight, per unit that is learned of it, at which a model of independent inputs can tell little: of the AUC above 1/2 that the
true weights have, some 15 to 25 % is left; at 1 about half, at 0.2 more than 85 %. Inputs that agree with each other do better."""

_FEWEST_PARTS, _MOST_PARTS = 500, 20_000
"""Of a study's time in the forecast: so many that in each little of the way is gone."""
_TYPICAL = 0.5
"""A row's sum of squares, as a part of the largest."""
_RESIDUAL = 0.5
"""That of a model which knows little yet."""
_LABEL_VARIANCE = {"identity": 1.0, "logit": 0.25, "log": 0.5}
"""By which scores turn into gradients where little is known yet."""


def price_ddml(study: Study, params: Params) -> list[Release]:
    """DDML: a device's updates, which share its budget.

    Notes
    -----
    Ref: DDML §IV, whose epsilon speaks about one weight; errata D-01, D-15.

    Privacy
    -------
    Unit update, replace, against everyone who sees an update: what a ledger is charged. Unit weight: each weight of one update, against
    whoever sees nothing else.
    """
    if study.queries is not None:
        raise unpriceable(
            "[queries] cannot be priced in a ddml study.",
            why="Its unit is an update; counts of a device's rows would protect another unit, and the two are never added.",
            fix="Ask for counts in a study of their own, with protocol anonml.",
        )
    weights = counted(params.n_weights, "weight")
    if params.unit == "weight":
        name, event = f"a noisy update, each of its {weights} by itself", make_step(params).event
    else:
        name, event = f"a noisy update of {weights}", price(params)
    assert event is not None, "the epsilon of a study is finite"
    return [Release(name, event.reading(*params.columns), params.n_updates)]


def notes_ddml(params: Params) -> list[str]:
    """What a reader of the price has to know besides: the noise of an update, and what the paper says of other adversaries."""
    step, rates = make_step(params), params.rates
    assert step.event is not None, "the epsilon of a study is finite"
    notes = [
        f"The noise of an update is {_figure(step.deviation / 2**params.fraction_bits)} in each weight (root mean square, "
        f"{step.event.mechanism}), at a learning rate of {_figure(rates.learning_rate)} and a clip of {_figure(rates.clip)}."
    ]
    if params.delta and not step.event.delta:
        notes.append(f"The delta of {params.delta:g} is not used: {step.event.mechanism} has less noise, and a guarantee without it.")
    return notes + ([_expected_losses(params)] if params.n_instances > 1 else [])


def _expected_losses(params: Params) -> str:
    """The paper's factors, for one instance after another replaced, beside what its first one really is."""
    k, losses = params.n_instances, paper_factors(params.n_instances, _LATE)
    real = internal_loss(params.n_weights, params.epsilon_release) / params.epsilon_release
    return (
        f"Where updates replace instances, the paper expects a loss of {_figure(losses.internal)} epsilon to one who reads all {k} "
        f"instances right after an update, and of {_figure(losses.late)} epsilon to one who reads an instance after {_LATE} further "
        f"updates to that instance ({_LATE * k:,} or so in all). That is an expected loss, not a guarantee, and wrong for several weights "
        f"(errata D-02, D-03): with {counted(params.n_weights, 'weight')} the first reader's may be {_figure(real)} epsilon. Epsilon alone "
        "is claimed."
    )


def forecast_ddml(params: Params) -> list[Forecast]:
    """How noisy the weights are that come of the expected updates.

    Notes
    -----
    A weight that should become 1 is followed alone. Of each update the mean of the instances takes beta / k: a pull towards 1, as strong as
    the curvature of a label and inputs about which nothing is known, and noise. Noise that comes early is forgotten by and by. That the
    instances differ adds to the noise: see `course`.
    """
    n, step = params.n_expected, make_step(params)
    moved, curvature = course(params.n_instances, part_of(params.merge)), _curvature(params)
    most = params.gamma() * moved.pace * curvature * n
    parts = min(n, math.ceil(min(max(most, _FEWEST_PARTS), _MOST_PARTS)))
    each = n / parts
    epochs = (np.arange(parts) + 0.5) * each // params.epoch_updates
    eta = np.array([params.gamma(int(epoch)) for epoch in epochs]) * moved.pace
    pulled = eta * curvature * each
    # Noise fades within a part as it does between them.
    noise = each * (eta * step.deviation / step.scale) ** 2 * moved.noise * -np.expm1(-2 * pulled) / (2 * pulled)
    share, left, late = _shares(parts, averaging=params.averaging), np.empty(parts), 0.0
    for t in reversed(range(parts)):
        left[t] = share[t] + late
        late = left[t] * math.exp(-pulled[t])
    learned, blurred = float(left @ -np.expm1(-pulled)), math.sqrt(float(left**2 @ noise))
    what = (
        "noise of a weight per unit that is learned of it (0.2 is good, 2 is useless), "
        f"after {counted(n, 'update')} of {counted(params.n_weights, 'weight')}"
    )
    return [Forecast(what, blurred / learned, useless_from=USELESS_FROM)]


def _shares(parts: int, *, averaging: bool) -> Floats:
    """What each time counts for the model: with averaging as the fourth power of time grows, else the end alone."""
    return np.diff(np.linspace(0, 1, parts + 1) ** 4) if averaging else np.eye(1, parts, parts - 1)[0]


def _curvature(params: Params) -> float:
    """How strongly a weight that is 1 too small is pulled, on average over the weights. What all rows have in common teaches nothing."""
    label = _LABEL_VARIANCE.get(params.link, (params.n_outputs - 1) / params.n_outputs**2)
    largest = 1.0 if params.unit == "weight" else params.design.norms[1]
    kept = min(1.0, params.rates.clip / (_RESIDUAL * largest))
    squares = _TYPICAL * replace(params.design, centred=True).norms[1] ** 2
    return kept * label * squares / params.design.width


def _figure(value: float) -> str:
    return f"{value:.3g}"
