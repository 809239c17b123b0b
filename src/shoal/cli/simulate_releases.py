"""What a simulated PFDS study releases, as the artefacts that a real one would: signed, and marked as a simulation."""

from __future__ import annotations

from pathlib import Path

from shoal.crypto.roster import Identity
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.params import Params
from shoal.releases.artefact import write
from shoal.releases.content import Release, counted_rows
from shoal.sim.pfds import share
from shoal.sim.runs import Split, Task
from shoal.study.manifest import Manifest
from shoal.study.spec import Study


def write_releases(directory: Path, study: Study, task: Task, split: Split) -> None:
    """Write the release of a run into a directory that is there: that of the pool as ``release``, or ``release-0`` and so on by holder.

    Notes
    -----
    The run is made again, which gives the same: outcomes of runs do not carry rows about. Whoever knows the seed can sign as any of
    these holders.
    """
    params, shared, manifest = task.params, share(task, split), Manifest(study)
    assert isinstance(params, Params)
    is_pool = params.variant == "plus"
    model = shared.model if is_pool else None
    counted = counted_rows(params, shared.answers, len(shared.sharers)) if is_pool else None
    for holder, dataset in zip(shared.sharers, shared.released(params, task), strict=not is_pool):
        release = Release(manifest, dataset, is_simulated=True, model=model, counted=counted)
        identity = Identity.from_seed(SeededEntropy(task.seed).spawn("simulated holder", holder).bytes(32))
        name = "release" if is_pool else f"release-{holder}"
        write(directory / name, release, f"simulated holder {holder}", identity, inferred=False)
