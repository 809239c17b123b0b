"""From a study to the public figures of SDQ and to the course that follows from them."""

from __future__ import annotations

from shoal.privacy.events import Unit
from shoal.protocols.sdq import scripts
from shoal.protocols.sdq.params import Params
from shoal.protocols.sdq.queries import Free
from shoal.protocols.sdq.script import Script
from shoal.study.spec import Study


def params_of(study: Study) -> Params:
    """What the parties of an SDQ study agree on; what has no meaning in a study, and is None there, stays as it is by default."""
    settings = study.sdq
    assert settings is not None, "a study of sdq has its table"
    return Params(
        study.schema(),
        study.privacy.epsilon,
        study.participation.size,
        n_databases=settings.n_databases,
        minimum=study.participation.minimum,
        max_colluders=settings.max_colluders,
        variant=study.variant,
        trust="local" if study.trust == "local" else "secure-sum",
        noise=settings.noise,
        choice=settings.choice or Params.choice,
        learner=settings.learner,
        depth=settings.depth or Params.depth,
        unit="person" if study.unit is Unit.PERSON else "record",
        max_rows=study.max_rows,
    )


def free_of(study: Study) -> Free | None:
    """What the analyst may count freely; None where nothing."""
    asked = study.queries
    return None if asked is None else Free(asked.features, asked.n_queries, asked.epsilon_release)


def script_of(study: Study) -> Script:
    """The course of an SDQ study."""
    return scripts.script_of(params_of(study))
