"""From a study to the public figures of PFDS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.privacy.events import Unit
from shoal.protocols.pfds.params import Params

if TYPE_CHECKING:
    from shoal.study.spec import Study


def params_of(study: Study) -> Params:
    """What the parties of a PFDS study agree on; what has no meaning in a study, and is None there, stays as it is by default."""
    settings = study.pfds
    assert settings is not None, "a study of pfds has its table"
    return Params(
        study.schema(),
        study.privacy.epsilon,
        study.participation.size,
        delta=study.privacy.delta,
        n_holders=settings.n_holders,
        minimum=study.participation.minimum,
        max_colluders=settings.max_colluders,
        variant=study.variant,
        trust="secure-sum" if study.trust == "secure-sum" else "local",
        max_depth=settings.max_depth or Params.max_depth,
        n_candidates=settings.n_candidates or Params.n_candidates,
        n_levels=settings.n_levels or Params.n_levels,
        n_buckets=settings.n_buckets or Params.n_buckets,
        labelling=settings.labelling or Params.labelling,
        projection=Params.projection if settings.projection is None else settings.projection,
        unit="person" if study.unit is Unit.PERSON else "record",
        max_rows=study.max_rows,
    )
