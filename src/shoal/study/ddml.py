"""DDML studies: constraints, defaults, parameters, prices, forecast, wording and peer.

`shoal.study.registry` has `DDMLProtocol`; the coordinator's model server, audits and simulations
call `build_params` and `make_spam_filter`. Prices come from the step that a real peer takes, so
that the label, the ledger and the peer cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from shoal.data.features import MAX_NGRAM
from shoal.messages.base import Array, Message, Registry
from shoal.messages.codec import encode
from shoal.privacy.events import Event, Unit
from shoal.privacy.rounding import format_epsilon
from shoal.protocols.ddml.analysis import compute_dynamics, internal_loss, paper_factors
from shoal.protocols.ddml.design_matrix import InputDesign
from shoal.protocols.ddml.merging import find_blend_factor
from shoal.protocols.ddml.messages import (
    ID_BYTES,
    MESSAGES,
    DDMLDraw,
    DDMLInstance,
    DDMLUpdate,
)
from shoal.protocols.ddml.noisy_step import charge_update, make_step, price_update
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.spam_filter import SpamFilter, calibrate_thresholds
from shoal.study.constraints import StudyProblem, suggest_names
from shoal.study.pricing import Forecast, PricedRelease, make_pricing_error
from shoal.study.protocol import (
    MARK,
    Document,
    EncodedRows,
    ErrorMeasure,
    Holders,
    LabelText,
    Seat,
    StudyDesign,
    StudyProtocol,
    TrustLevels,
    fill_table,
    list_personal_exclusions,
    make_result_error,
)
from shoal.study.spec import Study
from shoal.text import format_count

if TYPE_CHECKING:
    from shoal.protocols.ddml.model import GLM
    from shoal.protocols.machines import Peer
    from shoal.study.handle import StudyHandle
    from shoal.study.plan import Plan

Floats = npt.NDArray[np.float64]

MAX_WEIGHTS = 1 << 20
"""Most weights of a model: 4 MB, which every draw and every update carries."""

_DIGEST_BYTES = 32
_LAST_EPOCH = 2**32
"""Later than any epoch: an epoch has a thousand updates or more."""

_LATE_UPDATES = 100
"""Updates to an instance before the late reader of a note reads it."""

USELESS_FROM = 2.0
"""Noise in a weight, per unit learned, at which a model of independent inputs is nearly useless.

Of the AUC above 1/2 that the true weights have, some 15 to 25 % is left; at 1 about half, at 0.2
more than 85 %. Inputs that agree with each other do better.
"""

_MIN_PARTS, _MAX_PARTS = 500, 20_000
"""Number of parts of a study's time in the forecast, so that each part moves the model little."""
_TYPICAL_NORM_SHARE = 0.5
"""A row's sum of squares, as a part of the largest."""
_RESIDUAL = 0.5
"""Residual of a model that has learned little yet."""
_LABEL_VARIANCE = {"identity": 1.0, "logit": 0.25, "log": 0.5}
"""Factor from scores to gradients while little is known."""

_STARTER_INSTANCES = 20
"""Most instances of a starter study."""

_RECIPIENTS = (
    "the coordinator, each device that receives a model with your update in it, and anyone to whom "
    "they pass it on"
)


@dataclass(frozen=True)
class DDMLResult:
    """The result of a DDML study.

    Parameters
    ----------
    n_merged
        Updates that the model contains.
    refused
        Rejected updates, by reason.
    """

    model: GLM
    n_merged: int
    refused: Mapping[str, int] = field(default_factory=dict)


class DDMLProtocol(StudyProtocol):
    """DDML: devices with a few rows each send noisy updates of a linear model."""

    name = "ddml"
    title = "DDML"
    holders = Holders("device", "devices", "devices")
    trust_levels: ClassVar[TrustLevels] = {"plus": ("local",), "paper": ("local",)}
    units = ("update", "weight")
    predicts_numbers = True
    learns_text = True
    has_updates = True
    no_preview_reason = "There is no update to show: your table has no rows."
    example_note = (
        "It starts from a model in which all weights are zero. No model was requested from the "
        "coordinator for it. If you take part, your program requests a model for each update, and "
        "each request shows the coordinator that you have rows."
    )
    retention = (
        "each update, until it is merged into a model a moment later; the models, their average "
        "and the result stay, "
        'and with merge = "discard" a model may be a single update'
    )
    suits = "devices with a few rows each"

    @property
    def messages(self) -> Registry:
        """The message types of the protocol."""
        return MESSAGES

    def fill_defaults(self, document: Document, variant: str, trust: str) -> Document:
        """Return the document with a complete ``[ddml]`` and the n-grams of texts."""
        del trust
        table = {} if document.get("ddml") is None else document["ddml"]
        if isinstance(table, dict):
            plus = variant != "paper"
            defaults = {
                "merge": "blend" if plus else "discard",
                "averaging": plus,
                "centred": plus,
                "link": _default_link(document),
            }
            table = fill_table(table, defaults)
        return {**document, "ddml": table, **_fill_texts(document)}

    def check_delta(self, study: Study) -> Iterator[StudyProblem]:
        """Yield a problem if the unit weight has a delta."""
        if study.privacy.delta > 0 and study.privacy.unit == "weight":
            yield StudyProblem(
                "SPEC-022",
                ("privacy", "delta"),
                "The unit weight is the paper's, which is pure: it has no delta.",
                'unit = "update"',
            )

    def find_problems(self, study: Study) -> Iterator[StudyProblem]:
        """Yield each condition of DDML that the study breaks."""
        yield from _check_settings(study)
        yield from _check_crosses(study)

    def is_anonymous(self, study: Study) -> bool:
        """Return whether devices send updates with tokens."""
        return study.ddml is not None and study.ddml.admission == "token"

    def needs_enrolment(self, study: Study) -> bool:
        """Return whether updates are signed or have tokens."""
        return study.ddml is None or study.ddml.admission != "open"

    def build_params(self, study: Study) -> DDMLParams:
        """Return the parameters that all parties of the study agree on."""
        return build_params(study)

    def price_releases(self, design: StudyDesign) -> list[PricedRelease]:
        """Return the updates of one device, which share its budget.

        Notes
        -----
        Ref: DDML §IV: its epsilon is that of one weight; errata D-01, D-15.

        Privacy
        -------
        Unit update, replace, against everyone who sees an update: a ledger is charged this. Unit
        weight: each weight of one update, against an observer of that weight alone.
        """
        params: DDMLParams = design.params
        if design.study.queries is not None:
            raise make_pricing_error(
                "[queries] cannot be priced in a ddml study.",
                why="Its unit is an update. Counts of a device's rows would protect another unit, "
                "and prices for different units are never added.",
                fix="Ask for counts in a separate study, with protocol anonml.",
            )
        weights = format_count(params.n_weights, "weight")
        if params.unit == "weight":
            name, event = f"a noisy update, each of its {weights} alone", make_step(params).event
        else:
            name, event = f"a noisy update of {weights}", price_update(params)
        assert event is not None, "the epsilon of a study is finite"
        return [PricedRelease(name, event.with_reads(*params.columns), params.n_updates)]

    def scale_starter(self, size: int) -> dict[str, tuple[int, str]]:
        """Return minimum, instances and batch size for `size` devices with one row each."""
        figures = super().scale_starter(size)
        minimum, _ = figures["minimum"]
        return figures | {
            "n_instances": (_STARTER_INSTANCES, "k")
            if minimum >= _STARTER_INSTANCES
            else (minimum, f"{MARK}: k, at most minimum"),
            "batch_size": (1, "N_c: rows of a device; here each row is one device"),
        }

    def forecast(self, design: StudyDesign) -> list[Forecast]:
        """Return the expected noise of a weight after all expected updates."""
        return forecast_ddml(design.params)

    def get_error_measure(self, study: Study) -> ErrorMeasure:
        """Return the noise of a weight."""
        del study
        return ErrorMeasure("noise in a weight per unit learned of it (0.2 is good, 2 is useless)")

    def charge(self, design: StudyDesign, event: Event) -> Event:
        """Return the event of a whole update, also for the unit weight."""
        return charge_update(event, design.params.n_weights)

    def make_label_text(self, design: StudyDesign) -> LabelText:
        """Return the label's text about updates and about everyone who can read them."""
        params: DDMLParams = design.params
        times = "once" if params.n_updates == 1 else f"up to {params.n_updates} times"
        return LabelText(
            leaves=f"a model of {format_count(params.n_weights, 'weight')}, changed by your rows "
            f"and blurred by random noise, {times}. None of your rows leaves",
            seen_by=_RECIPIENTS,
            not_covered=list_personal_exclusions(
                design.study, ["that your device has rows at all: requesting a model shows it"]
            ),
            bytes=params.n_updates * _count_update_bytes(params.n_weights),
            n_weights=params.n_weights if params.unit == "weight" else None,
        )

    def list_notes(self, plan: Plan) -> list[str]:
        """Return the noise of an update, and the total for the unit weight."""
        params: DDMLParams = plan.params
        notes = list_notes_ddml(params)
        if plan.study.unit is not Unit.WEIGHT:
            return notes
        alone = (
            " Such figures do not add up over updates (errata D-15)."
            if params.n_updates > 1
            else ""
        )
        total = (
            f"Everything you send: {format_count(params.n_weights, 'weight')} of "
            f"{format_count(params.n_updates, 'update')}, "
            f"epsilon {format_epsilon(plan.total_loss.epsilon)}. The ledger counts this. "
            "Each weight of one update, seen alone: epsilon "
            f"{format_epsilon(plan.loss.epsilon)}.{alone}"
        )
        return [total, *notes]

    def describe_participants(self, study: Study) -> str:
        """Return who takes part, with numbers."""
        asked, times = study.participation, format_count(study.privacy.n_updates, "update")
        return (
            f"{self.suits}: at least {asked.minimum:,}, {asked.size:,} expected, "
            f"up to {times} from each"
        )

    def describe_token_recipients(self, study: Study) -> tuple[str, str]:
        """Return who sees an update with a token, and what it is called."""
        del study
        return _RECIPIENTS, "an update"

    def make_peer(self, handle: StudyHandle, rows: EncodedRows, seat: Seat) -> Peer[Any]:
        """Return the peer that draws a model and sends its update."""
        from shoal.protocols.ddml.peer import DDMLPeer

        del seat
        return DDMLPeer(handle.digest, handle.params, *rows)

    def make_example_messages(
        self, handle: StudyHandle, first: Sequence[Message]
    ) -> Sequence[Message]:
        """Return an instance of zeros in reply to each draw."""
        params: DDMLParams = handle.params
        weights = Array.from_values(np.zeros(params.n_weights, np.int32))
        return [
            DDMLInstance(study=handle.digest, draw=draw.id, epoch=0, weights=weights)
            for draw in first
            if isinstance(draw, DDMLDraw)
        ]

    def count_expected_updates(self, handle: StudyHandle) -> int:
        """Return after how many merged updates the study ends."""
        params: DDMLParams = handle.params
        return params.n_expected

    def make_result(self, handle: StudyHandle, result: object) -> Document:
        """Return the model and the number of updates."""
        del handle
        if not isinstance(result, DDMLResult):
            raise make_result_error(result)
        return {
            "model": result.model.to_plain(),
            "counts": {"merged": result.n_merged, "refused": dict(result.refused)},
        }


def build_params(study: Study) -> DDMLParams:
    """Return the parameters that all parties of a DDML study agree on."""
    settings = study.ddml
    assert settings is not None, "fill_defaults adds the table [ddml]"
    return DDMLParams(
        study.schema(),
        study.privacy.epsilon,
        study.participation.size,
        variant=study.variant,
        unit="weight" if study.unit is Unit.WEIGHT else "update",
        delta=study.privacy.delta,
        n_updates=study.privacy.n_updates,
        batch_size=settings.batch_size,
        n_instances=settings.n_instances,
        merge=settings.merge,
        link=settings.link,
        crosses=settings.crosses,
        centred=settings.centred,
        learning_rate=settings.learning_rate,
        clip=settings.clip,
        fraction_bits=settings.fraction_bits,
        decay=settings.decay,
        averaging=settings.averaging,
    )


def make_spam_filter(study: Study, in_flight: int | None = None) -> SpamFilter:
    """Return the filter that rejects spam in a DDML study.

    Parameters
    ----------
    study
        Its ``spam_threshold``, if given, replaces the calibrated largest deviation.
    in_flight
        Updates in flight, on average, when one arrives. None for the number of instances: the real
        number is not known before the study runs, and a smaller one matters little (errata D-07).
        With five times that number up to 2 % of honest updates are rejected instead of 0.5 %; give
        the number then.
    """
    params, settings = build_params(study), study.ddml
    assert settings is not None
    return SpamFilter(
        params,
        calibrate_thresholds(
            params, params.n_instances if in_flight is None else in_flight, settings.spam_threshold
        ),
    )


def _check_settings(study: Study) -> Iterator[StudyProblem]:
    table = study.ddml
    if table is None:
        return
    if study.variant == "paper" and table.merge != "discard":
        yield StudyProblem(
            "SPEC-022",
            ("ddml", "merge"),
            f'The paper discards instances; merge = "{table.merge}" belongs to plus.',
            'merge = "discard"',
        )
    n_values = len(study.label.values or ())
    fitting = {0: ("identity", "log"), 2: ("logit", "multinomial")}.get(n_values, ("multinomial",))
    if table.link not in fitting:
        kind = f"a label of {n_values} values" if n_values else "a numeric label"
        yield StudyProblem(
            "SPEC-021",
            ("ddml", "link"),
            f'link = "{table.link}" does not fit {kind}.',
            f'link = "{fitting[0]}"',
        )
    for i, feature in enumerate(study.feature):
        if feature.bins == () and not feature.missing:
            yield StudyProblem(
                "SPEC-021",
                ("feature", i, "bins"),
                f"{feature.name} has a single bin, and therefore no weight.",
                "Remove bins, or give at least one bin edge.",
            )
    if study.participation.minimum < table.n_instances:
        yield StudyProblem(
            "SPEC-021",
            ("ddml", "n_instances"),
            f"n_instances = {table.n_instances} is more than the minimum of "
            f"{study.participation.minimum} devices.",
            f"n_instances = {study.participation.minimum}",
        )


def _check_crosses(study: Study) -> Iterator[StudyProblem]:
    """Yield invalid pairs; if all are valid, the problem of too many weights."""
    if study.ddml is None:
        return
    schema, crosses = study.schema(), study.ddml.crosses
    is_invalid, seen = False, set()
    for i, pair in enumerate(crosses):
        unknown = [name for name in pair if name not in schema.columns]
        is_repeated = frozenset(pair) in seen
        seen.add(frozenset(pair))
        if unknown or pair[0] == pair[1] or is_repeated:
            is_invalid = True
            if unknown:
                what = f"{unknown[0]} is not a feature."
            elif pair[0] == pair[1]:
                what = f"{pair[0]} is paired with itself."
            else:
                what = f"{pair[0]} is paired with {pair[1]} twice."
            yield StudyProblem(
                "SPEC-021",
                ("ddml", "crosses", i),
                f"crosses: {what}",
                suggest_names(schema.columns),
            )
    n_outputs = len(study.label.values or ()) if study.ddml.link == "multinomial" else 1
    p = 0 if is_invalid else n_outputs * InputDesign(schema, crosses).width
    if p > MAX_WEIGHTS:
        yield StudyProblem(
            "SPEC-021",
            ("ddml", "crosses") if crosses else ("feature",),
            f"The model has {p:,} weights; at most {MAX_WEIGHTS:,} can be learned.",
            "Use fewer crosses or buckets, or group values.",
        )


def _default_link(document: dict[str, Any]) -> str:
    label = document.get("label")
    values = label.get("values") if isinstance(label, dict) else None
    if not isinstance(values, (list, tuple)):
        return "identity"
    return "logit" if len(values) == 2 else "multinomial"


def _fill_texts(document: dict[str, Any]) -> dict[str, Any]:
    """Return the features, with the default ``ngrams`` for texts."""
    features = document.get("feature")
    if not isinstance(features, (list, tuple)):
        return {}
    is_text = [
        isinstance(feature, dict) and feature.get("buckets") is not None for feature in features
    ]
    return {
        "feature": [
            {"ngrams": MAX_NGRAM, **table} if text else table
            for table, text in zip(features, is_text, strict=True)
        ]
    }


def list_notes_ddml(params: DDMLParams) -> list[str]:
    """Return notes on the noise of an update and on the paper's statements about other readers."""
    step, rates = make_step(params), params.rates
    assert step.event is not None, "the epsilon of a study is finite"
    notes = [
        f"The noise of an update is {_format_figure(step.deviation / 2**params.fraction_bits)} in "
        "each weight (root mean square, "
        f"{step.event.mechanism}), at a learning rate of {_format_figure(rates.learning_rate)} "
        f"and a clip of {_format_figure(rates.clip)}."
    ]
    if params.delta and not step.event.delta:
        notes.append(
            f"The delta of {params.delta:g} is not used: {step.event.mechanism} has less noise "
            "and a guarantee without delta."
        )
    return notes + ([_describe_expected_losses(params)] if params.n_instances > 1 else [])


def _describe_expected_losses(params: DDMLParams) -> str:
    """Return the paper's factors for replaced instances, and the real value of the first one."""
    k, losses = params.n_instances, paper_factors(params.n_instances, _LATE_UPDATES)
    real = internal_loss(params.n_weights, params.epsilon_release) / params.epsilon_release
    return (
        f"If updates replace instances, the paper expects a loss of "
        f"{_format_figure(losses.internal)} epsilon to a reader of all {k} instances right after "
        f"an update, and of {_format_figure(losses.late)} epsilon to a reader of an instance after "
        f"{_LATE_UPDATES} further updates to it (about {_LATE_UPDATES * k:,} in all). These are "
        "expected losses, not guarantees, and wrong for several weights (errata D-02, D-03): with "
        f"{format_count(params.n_weights, 'weight')} the first reader's loss may be "
        f"{_format_figure(real)} epsilon. shoal claims epsilon alone."
    )


def _count_update_bytes(p: int) -> int:
    """Return the size of a request for a model and of the update, encoded."""
    study, update_id = bytes(_DIGEST_BYTES), bytes(ID_BYTES)
    update = DDMLUpdate(
        study=study,
        id=update_id,
        epoch=_LAST_EPOCH,
        weights=Array.from_values(np.zeros(p, np.int32)),
    )
    return len(encode(DDMLDraw(study=study, id=update_id))) + len(encode(update))


def forecast_ddml(params: DDMLParams) -> list[Forecast]:
    """Return the expected noise in a weight after all expected updates.

    Notes
    -----
    The forecast follows a single weight that should become 1. The mean of the instances takes
    beta / k of each update: a pull towards 1, with the curvature of a label and inputs about which
    nothing is known, and noise. Early noise is forgotten gradually. Differences between the
    instances add to the noise: see `compute_dynamics`.
    """
    n, step = params.n_expected, make_step(params)
    moved, curvature = (
        compute_dynamics(params.n_instances, find_blend_factor(params.merge)),
        _estimate_curvature(params),
    )
    wanted = params.gamma() * moved.pace * curvature * n
    parts = min(n, math.ceil(min(max(wanted, _MIN_PARTS), _MAX_PARTS)))
    each = n / parts
    epochs = (np.arange(parts) + 0.5) * each // params.epoch_updates
    eta = np.array([params.gamma(int(epoch)) for epoch in epochs]) * moved.pace
    pulled = eta * curvature * each
    # Noise fades within a part as it does between parts.
    noise = (
        each
        * (eta * step.deviation / step.scale) ** 2
        * moved.noise
        * -np.expm1(-2 * pulled)
        / (2 * pulled)
    )
    share, left, late = (
        _compute_time_weights(parts, averaging=params.averaging),
        np.empty(parts),
        0.0,
    )
    for t in reversed(range(parts)):
        left[t] = share[t] + late
        late = left[t] * math.exp(-pulled[t])
    learned, blurred = float(left @ -np.expm1(-pulled)), math.sqrt(float(left**2 @ noise))
    what = (
        "noise in a weight per unit learned of it (0.2 is good, 2 is useless), "
        f"after {format_count(n, 'update')} of {format_count(params.n_weights, 'weight')}"
    )
    return [Forecast(what, blurred / learned, useless_from=USELESS_FROM)]


def _compute_time_weights(parts: int, *, averaging: bool) -> Floats:
    """Return the weight of each part of the time in the model.

    With averaging it grows with the fourth power of time; otherwise the last part alone counts.
    """
    return (
        np.diff(np.linspace(0, 1, parts + 1) ** 4) if averaging else np.eye(1, parts, parts - 1)[0]
    )


def _estimate_curvature(params: DDMLParams) -> float:
    """Return the mean pull on a weight that is 1 too small.

    Values that all rows have in common teach nothing, so inputs are centred.
    """
    label = _LABEL_VARIANCE.get(params.link, (params.n_outputs - 1) / params.n_outputs**2)
    largest = 1.0 if params.unit == "weight" else params.design.norms[1]
    kept = min(1.0, params.rates.clip / (_RESIDUAL * largest))
    squares = _TYPICAL_NORM_SHARE * replace(params.design, centred=True).norms[1] ** 2
    return kept * label * squares / params.design.width


def _format_figure(value: float) -> str:
    return f"{value:.3g}"
