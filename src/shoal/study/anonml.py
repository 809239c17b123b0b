"""From a study to the parameters of AnonML and to the course that follows from them."""

from __future__ import annotations

from shoal.protocols.anonml.params import Paper, Params, Plus
from shoal.protocols.anonml.population import make_script
from shoal.protocols.anonml.script import Script
from shoal.study.manifest import Manifest
from shoal.study.settings import AnonML
from shoal.study.spec import Study


def params_of(study: Study) -> Params:
    """What the parties of an AnonML study agree on."""
    schema, epsilon, size = study.schema(), study.privacy.epsilon, study.participation.size
    if study.variant == "plus":
        return Plus(schema, epsilon, size, trust="shuffled" if study.trust == "shuffled" else "local")
    settings = study.anonml or AnonML()
    return Paper(
        schema,
        epsilon,
        size,
        n_partitions=settings.n_partitions or 1,
        n_subsets=settings.n_subsets or 1,
        subset_size=settings.subset_size or 1,
        accounting=settings.accounting,
        classifier=settings.classifier,
        score=settings.score,
    )


def script_of(study: Study, digest: bytes | None = None) -> Script:
    """The course of an AnonML study.

    Parameters
    ----------
    study
        The study.
    digest
        Digest of its manifest, from which the feature subsets of variant ``paper`` follow; by default that of a manifest without keys.
    """
    return make_script(params_of(study), Manifest(study).digest if digest is None else digest)
