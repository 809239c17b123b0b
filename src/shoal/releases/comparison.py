"""A release beside the real rows: for the eyes of the holder who has them, and for nobody else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Columns, Feature, Numeric
from shoal.entropy import Entropy
from shoal.errors import StoreError, UsageError
from shoal.names import shown
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.params import Params
from shoal.releases.artefact import DOCUMENT
from shoal.releases.content import Release
from shoal.releases.findings import Finding, by_chance, earth_movers, shares_of, total_variation
from shoal.releases.learning import every_fourth, taken, try_out
from shoal.releases.partitions import partition_distance

NOTICE = "COMPUTED FROM REAL ROWS: must not be published, and is not covered by the privacy statement of the release."
PARTITIONS = 50
CELLS = 64

_BOTH = "the released rows and the real ones"


@dataclass(frozen=True)
class Comparison:
    """What a release has in common with the real rows.

    Privacy
    -------
    None: no noise was added to what real rows say here.
    """

    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        return "\n".join([NOTICE, "", *map(str, self.findings)])

    def to_dict(self) -> dict[str, object]:
        """Plain data, with the notice first."""
        return {"notice": NOTICE, "findings": [finding.model_dump() for finding in self.findings]}

    def write(self, path: Path) -> None:
        """Write it for its owner's eyes only, whole or not at all; never over a file, nor into the directory of a release."""
        try:
            if any((parent / DOCUMENT).exists() for parent in path.absolute().resolve().parents):
                what = f"{shown(str(path))} lies in the directory of a release, which is made to be passed on."
                raise UsageError("REL-010", what, fix="Choose a place of your own.")
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.absolute().parent) as file:
                file.write(f"{self}\n")
                file.flush()
                # Unlike a rename, a link never takes the place of what is there, be it a link that leads nowhere.
                os.link(file.name, path)
        except FileExistsError:
            what = f"{shown(str(path))} is already there; nothing is overwritten by a comparison."
            raise UsageError("REL-010", what, fix="Choose a new name.") from None
        except OSError as error:
            raise StoreError("REL-010", f"{shown(str(path))} cannot be written: {error.strerror}.", fix="Choose another file.") from None


def compare(release: Release, columns: Columns, entropy: Entropy) -> Comparison:
    """Sizes, marginals, distances over random partitions, and what the released rows teach about the real ones.

    Parameters
    ----------
    columns
        The real rows as a table; they must fit the study.
    entropy
        Draws the partitions and the order of the real rows.
    """
    schema, released = release.schema, release.dataset
    real = Dataset(schema.encode(columns), schema.encode_label(columns))
    size = Finding(what="rows released", value=float(len(released)), beside={"real rows": float(len(real))}, source=_BOTH)
    if not len(real) or not len(released):
        return Comparison((size,))
    # A table is often sorted, and its quarters then differ.
    real = taken(real, np.argsort(entropy.words(len(real), np.uint64)))
    pairs = [(feature, real.columns[feature.name], released.columns[feature.name]) for feature in release.params.coded.features]
    pairs.append((release.params.label, real.labels, released.labels))
    marginals = [finding for pair in pairs for finding in _marginal(*pair)]
    return Comparison((size, *marginals, _partitions(release, real, entropy), *_learned(release.params, real, released)))


def _marginal(feature: Feature, real: npt.NDArray[Any], released: npt.NDArray[Any]) -> Iterator[Finding]:
    """One column alone; a label that is a number has no cells."""
    name = shown(feature.name)
    if feature.n_bins is not None:
        cells = shares_of(feature, real), shares_of(feature, released)
        beside = {"by chance": by_chance(cells[0], len(real), len(released))}
        yield Finding(what=f"total variation of {name}", value=total_variation(*cells), beside=beside, source=_BOTH)
    if isinstance(feature, Numeric):
        known = [column[~np.isnan(column)] for column in (real, released)]
        if all(map(len, known)):
            width = float(feature.high) - float(feature.low)
            what = f"Wasserstein distance of {name}, as a share of its range"
            yield Finding(what=what, value=earth_movers(*known) / width, beside={}, source=_BOTH)


def _partitions(release: Release, real: Dataset, entropy: Entropy) -> Finding:
    half = len(real) // 2
    halves = taken(real, slice(half)), taken(real, slice(half, None))
    between, inside = (
        float(partition_distance(release.schema, one, other, CELLS, PARTITIONS, entropy).mean())
        for one, other in ((real, release.dataset), halves)
    )
    what = f"Wasserstein distance over {PARTITIONS} random partitions into {CELLS} cells, on average"
    return Finding(what=what, value=between, beside={"between two halves of the real rows": inside}, source=_BOTH)


def _learned(params: Params, real: Dataset, released: Dataset) -> Iterator[Finding]:
    """Train on synthetic, test on real; beside train on real, test on real."""
    train, test = every_fourth(real)
    ours, theirs = try_out(params, train, test), try_out(params, released, test)
    if ours is None or theirs is None:
        return
    trivial = "always their mean" if params.is_number else "always their most common class"
    beside = {"learned from the other three quarters of the real rows": ours.error, trivial: ours.trivial}
    what = "error of a regression on a quarter of the real rows, learned from the released rows"
    yield Finding(what=what, value=theirs.error, beside=beside, source=_BOTH)
