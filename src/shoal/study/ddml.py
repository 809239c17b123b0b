"""From a study to the public figures of DDML."""

from __future__ import annotations

from shoal.privacy.events import Unit
from shoal.protocols.ddml.params import Params
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
