"""Compare a release with real rows.

``shoal release compare`` calls `compare_release` for the holder of the real rows. The result has no
privacy guarantee, so that every output begins with `NOTICE`, and no file is written into the
directory of a release.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Categorical, Columns, Feature, Numeric, Schema
from shoal.entropy import Entropy
from shoal.errors import UsageError
from shoal.files import write_new
from shoal.protocols.pfds.dataset import Dataset, draw_uniform
from shoal.protocols.pfds.params import Floats, Ints, PFDSParams
from shoal.releases.artifact import DOCUMENT
from shoal.releases.content import PFDSRelease
from shoal.releases.quality import (
    QualityFinding,
    compute_sampling_distance,
    compute_shares,
    compute_total_variation,
    compute_wasserstein_distance,
    evaluate_regression,
    select_rows,
    split_every_fourth,
)
from shoal.text import escape_text

_Domain = tuple[float, float] | Ints
"""The rest of a column's domain in one cell: a range of a number, or positions of values."""


def compute_partition_distances(
    schema: Schema,
    real: Dataset,
    synthetic: Dataset,
    n_cells: int,
    n_repeats: int,
    entropy: Entropy,
) -> Floats:
    """Return Wasserstein distances between two datasets over random partitions.

    There is one distance between the histograms for each partition, ``(n_repeats,)``.

    Parameters
    ----------
    n_cells
        Cells of a partition, at least two; fewer if the domain has fewer distinct rows.

    Notes
    -----
    Ref: PFDS §4, Figure 3(b), which does not define the distance further. Here the domain, label
    included, is cut in two repeatedly: a random cell at a random column, a number at a uniform
    value of the rest of its range, a category into two random parts. Cells stay in the order of the
    cuts, so that those with more cuts in common are closer, at equal distances from 0 to 1.
    Histograms are shares.

    Examples
    --------
    >>> from shoal.data.schema import Numeric
    >>> from shoal.entropy import SeededEntropy
    >>> schema = Schema([Numeric("age", 0, 99)], label=Categorical("ill", ["no", "yes"]))
    >>> young = Dataset({"age": np.full(10, 1.0)}, np.zeros(10, int))
    >>> old = Dataset({"age": np.full(10, 98.0)}, np.ones(10, int))
    >>> [
    ...     bool(
    ...         compute_partition_distances(schema, young, other, 8, 50, SeededEntropy(1)).mean()
    ...         > 0.1
    ...     )
    ...     for other in (young, old)
    ... ]
    [False, True]
    """
    assert schema.label is not None
    columns = [*schema.features, schema.label]
    values = np.concatenate([_stack_columns(schema, dataset) for dataset in (real, synthetic)])
    is_real = np.arange(len(values)) < len(real)
    distances = []
    for _ in range(n_repeats):
        cells = _draw_partition(columns, values, n_cells, entropy)
        n_real = np.array([is_real[rows].sum() for rows in cells])
        n_synthetic = np.array([len(rows) for rows in cells]) - n_real
        ahead = np.cumsum(n_real / max(1, len(real)) - n_synthetic / max(1, len(synthetic)))
        distances.append(np.abs(ahead[:-1]).sum() / (len(cells) - 1))
    return np.array(distances)


def _stack_columns(schema: Schema, dataset: Dataset) -> Floats:
    return np.stack(
        [
            *(np.asarray(dataset.columns[name], float) for name in schema.names),
            np.asarray(dataset.labels, float),
        ],
        axis=1,
    )


def _draw_partition(
    columns: list[Feature], values: Floats, n_cells: int, entropy: Entropy
) -> list[Ints]:
    """Return the rows in each cell of a random partition."""
    cells: list[tuple[Ints, list[_Domain]]] = [
        (np.arange(len(values)), [_make_domain(column) for column in columns])
    ]
    while len(cells) < n_cells:
        open_cells = [i for i, (_, domains) in enumerate(cells) if any(map(_can_cut, domains))]
        if not open_cells:
            break
        i = open_cells[entropy.below(len(open_cells))]
        rows, domains = cells[i]
        open_columns = [j for j, domain in enumerate(domains) if _can_cut(domain)]
        j = open_columns[entropy.below(len(open_columns))]
        is_first, parts = _draw_cut(values[rows, j], domains[j], entropy)
        halves = ((rows[is_first], parts[0]), (rows[~is_first], parts[1]))
        cells[i : i + 1] = [
            (half, [*domains[:j], part, *domains[j + 1 :]]) for half, part in halves
        ]
    return [rows for rows, _ in cells]


def _make_domain(column: Feature) -> _Domain:
    if isinstance(column, Categorical):
        return np.arange(-1 if column.missing else 0, len(column.values))
    return float(column.low), float(column.high)


def _can_cut(domain: _Domain) -> bool:
    """Return whether a domain can be cut in two."""
    return (
        math.nextafter(domain[0], math.inf) < domain[1]
        if isinstance(domain, tuple)
        else domain.size > 1
    )


def _draw_cut(
    values: Floats, domain: _Domain, entropy: Entropy
) -> tuple[npt.NDArray[np.bool_], tuple[_Domain, _Domain]]:
    """Return which values are in the first of two random parts, and the parts.

    A missing number counts as larger than any other.
    """
    if isinstance(domain, tuple):
        low, high = domain
        cut = low + float(draw_uniform(1, entropy)[0]) * (high - low)
        return values <= cut, ((low, cut), (cut, high))
    shuffled = domain[np.argsort(entropy.words(domain.size, np.uint64))]
    n = 1 + entropy.below(domain.size - 1)
    return np.isin(values, shuffled[:n]), (shuffled[:n], shuffled[n:])


NOTICE = (
    "COMPUTED FROM REAL ROWS: must not be published, and is not covered by the privacy "
    "statement of the release."
)
N_PARTITIONS = 50
N_CELLS = 64

_BOTH = "the released rows and the real ones"


@dataclass(frozen=True)
class Comparison:
    """A comparison of a release with real rows.

    Privacy
    -------
    None: the figures contain no noise.
    """

    findings: tuple[QualityFinding, ...]

    def __str__(self) -> str:
        return "\n".join([NOTICE, "", *map(str, self.findings)])

    def to_dict(self) -> dict[str, object]:
        """Return plain data, with the notice first."""
        return {"notice": NOTICE, "findings": [finding.model_dump() for finding in self.findings]}

    def write(self, path: Path) -> None:
        """Write the comparison to a new file that only its owner can read.

        Raises
        ------
        UsageError
            ``REL-010``: the path is taken, or in the directory of a release.
        """
        if any((parent / DOCUMENT).exists() for parent in path.absolute().resolve().parents):
            what = (
                f"{escape_text(str(path))} is in the directory of a release, which will be "
                "published."
            )
            raise UsageError("REL-010", what, fix="Choose another directory.")
        write_new(path, f"{self}\n".encode(), code="REL-010", mode=0o600)


def compare_release(release: PFDSRelease, columns: Columns, entropy: Entropy) -> Comparison:
    """Compare sizes, marginals, random partitions, and regressions.

    Parameters
    ----------
    columns
        The real rows as a table; they must fit the study.
    entropy
        Source of the partitions and of the order of the real rows.
    """
    schema, released = release.schema, release.dataset
    real = Dataset(schema.encode(columns), schema.encode_label(columns))
    size = QualityFinding(
        what="rows released",
        value=float(len(released)),
        beside={"real rows": float(len(real))},
        source=_BOTH,
    )
    if not len(real) or not len(released):
        return Comparison((size,))
    # A table is often sorted, so that its quarters would differ.
    real = select_rows(real, np.argsort(entropy.words(len(real), np.uint64)))
    pairs = [
        (feature, real.columns[feature.name], released.columns[feature.name])
        for feature in release.params.coded_schema.features
    ]
    pairs.append((release.params.label, real.labels, released.labels))
    marginals = [finding for pair in pairs for finding in _compare_marginal(*pair)]
    return Comparison(
        (
            size,
            *marginals,
            _compare_partitions(release, real, entropy),
            *_compare_regressions(release.params, real, released),
        )
    )


def _compare_marginal(
    feature: Feature, real: npt.NDArray[Any], released: npt.NDArray[Any]
) -> Iterator[QualityFinding]:
    """Yield the distances of one column; a label that is a number has no cells."""
    name = escape_text(feature.name)
    if feature.n_bins is not None:
        cells = compute_shares(feature, real), compute_shares(feature, released)
        beside = {"by chance": compute_sampling_distance(cells[0], len(real), len(released))}
        yield QualityFinding(
            what=f"total variation of {name}",
            value=compute_total_variation(*cells),
            beside=beside,
            source=_BOTH,
        )
    if isinstance(feature, Numeric):
        known = [column[~np.isnan(column)] for column in (real, released)]
        if all(map(len, known)):
            width = float(feature.high) - float(feature.low)
            what = f"Wasserstein distance of {name}, as a share of its range"
            yield QualityFinding(
                what=what,
                value=compute_wasserstein_distance(*known) / width,
                beside={},
                source=_BOTH,
            )


def _compare_partitions(release: PFDSRelease, real: Dataset, entropy: Entropy) -> QualityFinding:
    half = len(real) // 2
    halves = select_rows(real, slice(half)), select_rows(real, slice(half, None))
    between, inside = (
        float(
            compute_partition_distances(
                release.schema, one, other, N_CELLS, N_PARTITIONS, entropy
            ).mean()
        )
        for one, other in ((real, release.dataset), halves)
    )
    what = (
        f"Wasserstein distance over {N_PARTITIONS} random partitions into {N_CELLS} cells, on "
        "average"
    )
    return QualityFinding(
        what=what,
        value=between,
        beside={"between two halves of the real rows": inside},
        source=_BOTH,
    )


def _compare_regressions(
    params: PFDSParams, real: Dataset, released: Dataset
) -> Iterator[QualityFinding]:
    """Yield the error of train-on-synthetic test-on-real, and of train-on-real."""
    train, test = split_every_fourth(real)
    from_real, from_released = (
        evaluate_regression(params, train, test),
        evaluate_regression(params, released, test),
    )
    if from_real is None or from_released is None:
        return
    trivial = "always their mean" if params.is_number else "always their most common class"
    beside = {
        "learned from the other three quarters of the real rows": from_real.error,
        trivial: from_real.baseline_error,
    }
    what = "error of a regression on a quarter of the real rows, learned from the released rows"
    yield QualityFinding(what=what, value=from_released.error, beside=beside, source=_BOTH)
