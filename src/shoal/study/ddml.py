"""From a study to the public figures of DDML, and to what its coordinator refuses."""

from __future__ import annotations

from shoal.privacy.events import Unit
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.spam import Filter, calibrate
from shoal.study.spec import Study


def params_of(study: Study) -> Params:
    """What the parties of a DDML study agree on."""
    settings = study.ddml
    assert settings is not None, "a study of ddml has its table, filled in where it is not written"
    return Params(
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


def filter_of(study: Study, in_flight: int | None = None) -> Filter:
    """What refuses spam in a DDML study.

    Parameters
    ----------
    study
        Its ``spam_threshold``, where it has one, takes the place of the largest deviation that is calibrated.
    in_flight
        Updates that are under way, on average, when one arrives. None for as many as there are instances: nobody knows the number before
        the study runs, and what is under way matters from about there on (errata D-07). Where five times as many are, up to 2 % of honest
        updates are refused instead of 0.5 %, and the number should be given.
    """
    params, settings = params_of(study), study.ddml
    assert settings is not None
    return Filter(params, calibrate(params, params.n_instances if in_flight is None else in_flight, settings.spam_threshold))
