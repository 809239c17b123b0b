"""The quality report of a release.

The report is computed from the released rows and from values that were charged for, never from a
real row. It therefore costs nothing, and a reader can compute it again. Only the charged count, the
label's shares and the error of a regression are taken from the signer without a check. The
regression is logistic or linear, with a ridge penalty, on the cells of the public coding.

`shoal.releases.document` writes and checks the report; `shoal.releases.comparison` uses the same
distances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Categorical, Feature, Numeric
from shoal.messages.base import Record
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.fitting import fit_ridge_model
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.params import Floats, PFDSParams, PFDSRows
from shoal.releases.content import NoisyRowCount, PFDSRelease
from shoal.study.pfds import forecast_pfds
from shoal.text import escape_text

_TOLERANCE = 1e-6
_MEAN_ABSOLUTE_NORMAL = math.sqrt(2 / math.pi)
"""Mean absolute value of a normal variable, in standard deviations."""


class QualityFinding(Record):
    """One figure of a report.

    Parameters
    ----------
    beside
        Reference values by name.
    source
        The data that it was computed from; the text follows the word "from".

    Examples
    --------
    >>> print(
    ...     QualityFinding(
    ...         what="rows", value=12.0, beside={"declared": 14.0}, source="the released rows"
    ...     )
    ... )
    rows: 12 (declared: 14); from the released rows
    """

    what: str
    value: float
    beside: dict[str, float]
    source: str

    def __str__(self) -> str:
        beside = ", ".join(
            f"{escape_text(name)}: {_format_figure(value)}" for name, value in self.beside.items()
        )
        return (
            f"{escape_text(self.what)}: "
            f"{_format_figure(self.value)}{f' ({beside})' if beside else ''}; from "
            f"{escape_text(self.source)}"
        )

    def is_close_to(self, other: QualityFinding) -> bool:
        """Return whether another finding is the same, except for the last digits.

        Machines may compute the last digits differently.
        """
        is_same_text = (self.what, list(self.beside), self.source) == (
            other.what,
            list(other.beside),
            other.source,
        )
        pairs = zip(
            (self.value, *self.beside.values()), (other.value, *other.beside.values()), strict=False
        )
        return is_same_text and all(
            math.isclose(one, another, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
            for one, another in pairs
        )


def compute_total_variation(one: Floats, other: Floats) -> float:
    """Return half the sum of absolute differences between two vectors of shares.

    It is 0 for equal shares and 1 for disjoint ones.
    """
    return float(np.abs(one - other).sum() / 2)


def compute_sampling_distance(shares: Floats, *sizes: float) -> float:
    """Return the expected total variation between samples of the given shares.

    There is one sample for each size; with one size, it is the distance of a sample from the
    shares.
    """
    return float(
        _MEAN_ABSOLUTE_NORMAL
        * np.sqrt(shares * (1 - shares) * sum(1 / size for size in sizes)).sum()
        / 2
    )


def compute_noise_distance(n_cells: int, deviation: float) -> float:
    """Return the expected total variation from noise on each of `n_cells` shares."""
    return _MEAN_ABSOLUTE_NORMAL * n_cells * deviation / 2


def compute_shares(feature: Feature, column: npt.NDArray[Any]) -> Floats:
    """Return the share of rows in each cell of a feature; there must be at least one row."""
    assert feature.n_bins is not None
    # An undeclared category counts as the last one if no value may be missing.
    cells = np.minimum(feature.cut(column), feature.n_bins - 1)
    return np.bincount(cells, minlength=feature.n_bins) / len(column)


def compute_wasserstein_distance(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Return the Wasserstein distance between two samples of numbers.

    It is the average distance by which one sample must be moved to become the other.

    Examples
    --------
    >>> compute_wasserstein_distance(np.array([0.0, 1.0]), np.array([5.0, 6.0]))
    5.0
    """
    positions = np.sort(np.concatenate([one, other]))
    below = [
        np.searchsorted(np.sort(sample), positions[:-1], side="right") / len(sample)
        for sample in (one, other)
    ]
    return float(np.sum(np.abs(below[0] - below[1]) * np.diff(positions)))


def _format_figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


MAX_ROWS = 20_000
"""Most rows for training a regression; more would hardly change the finding."""
MAX_WEIGHTS = 1_000
"""Most weights of a regression; larger models take too long to fit."""


@dataclass(frozen=True)
class RegressionTrial:
    """Test errors: the share of wrong classes, or the RMSE as a share of the range.

    Parameters
    ----------
    error
        Error of the regression.
    baseline_error
        Error of the most common class, or of the mean, of the training rows.
    """

    error: float
    baseline_error: float


def evaluate_regression(
    params: PFDSParams, train: Dataset, test: Dataset
) -> RegressionTrial | None:
    """Train a regression on some rows and test it on others.

    The result is None if there are no rows, or too many weights to fit quickly.
    """
    if not len(train) or not len(test) or params.n_cells * params.n_models > MAX_WEIGHTS:
        return None
    train = select_rows(train, slice(MAX_ROWS))
    model = fit_ridge_model(params, PFDSRows.from_columns(params, train.columns, train.labels))
    if isinstance(params.label, Numeric):
        width = float(params.label.high) - float(params.label.low)
        return RegressionTrial(
            _compute_relative_rmse(model.predict(test.columns) - test.labels, width),
            _compute_relative_rmse(train.labels.mean() - test.labels, width),
        )
    common = int(np.bincount(train.labels).argmax())
    return RegressionTrial(
        float(np.mean(model.decide(test.columns) != test.labels)),
        float(np.mean(test.labels != common)),
    )


def split_every_fourth(dataset: Dataset) -> tuple[Dataset, Dataset]:
    """Return three quarters of the rows for training, and every fourth for testing."""
    is_fourth = np.arange(len(dataset)) % 4 == 3
    return select_rows(dataset, ~is_fourth), select_rows(dataset, is_fourth)


def select_rows(dataset: Dataset, which: slice | np.ndarray) -> Dataset:
    """Return some of the rows."""
    return Dataset(
        {name: column[which] for name, column in dataset.columns.items()}, dataset.labels[which]
    )


def _compute_relative_rmse(errors: Floats, width: float) -> float:
    return float(np.sqrt(np.mean((errors / width) ** 2)))


# Findings are part of release.json: a change of these texts invalidates existing releases.
ROWS = "the released rows"
TABLES = "the released rows and the charged tables that the model holds"
REGRESSION_ERROR = (
    "how well the released rows give back what labelled them, which says nothing of real rows: "
    "error of a regression on every fourth of them, learned from the others"
)
STATED_ROWS = f"{ROWS}, by the signer's word"
STATED_COUNT = "the signer's word for a charged count"
CHARGED_COUNT = "among the rows that were asked, by the charged count"


def compute_findings(release: PFDSRelease) -> tuple[QualityFinding, ...]:
    """Return all findings that a reader of the release can compute again."""
    if not len(release.dataset):
        return (_make_size_finding(release),)
    marginals = [] if release.model is None else _compare_marginals(release, release.model)
    return (_make_size_finding(release), *marginals, *_compare_labels(release))


def make_quality_report(release: PFDSRelease) -> tuple[QualityFinding, ...]:
    """Return the findings, and the error of a regression if that is meaningful and fast."""
    trial = (
        evaluate_regression(release.params, *split_every_fourth(release.dataset))
        if _has_regression(release.params)
        else None
    )
    if trial is None:
        return compute_findings(release)
    return (*compute_findings(release), _make_regression_finding(release.params, trial))


def is_report_consistent(release: PFDSRelease, stated: Sequence[QualityFinding]) -> bool:
    """Return whether a report follows from the release.

    The error of the regression is not computed again; only its text and range are checked.
    """
    expected = [*compute_findings(release)]
    if len(stated) > len(expected) and _has_regression(release.params):
        error, beside = stated[-1].value, list(stated[-1].beside.values())
        if len(beside) != 1 or not all(0 <= figure <= 1 for figure in (error, *beside)):
            return False
        expected.append(_make_regression_finding(release.params, RegressionTrial(error, beside[0])))
    return len(stated) == len(expected) and all(
        computed.is_close_to(claimed) for computed, claimed in zip(expected, stated, strict=True)
    )


def _has_regression(params: PFDSParams) -> bool:
    """Return whether the report includes a regression.

    It does not if the regression would find exactly the numbers that the model assigned as labels.
    """
    return params.variant == "paper" or not params.is_number


def _make_regression_finding(params: PFDSParams, trial: RegressionTrial) -> QualityFinding:
    trivial = "always the mean" if params.is_number else "always the most common class"
    return QualityFinding(
        what=REGRESSION_ERROR,
        value=trial.error,
        beside={trivial: trial.baseline_error},
        source=STATED_ROWS,
    )


def _make_size_finding(release: PFDSRelease) -> QualityFinding:
    params, counted = release.params, release.noisy_count
    is_paper = params.variant == "paper"
    beside = {
        "an equal share of the declared rows" if is_paper else "declared": params.size
        / (params.n_holders if is_paper else 1)
    }
    if counted is not None:
        beside |= {
            "counted with noise": counted.rows,
            "standard deviation of that noise": counted.deviation,
        }
    return QualityFinding(
        what="rows",
        value=float(len(release.dataset)),
        beside=beside,
        source=_describe_source("the study", counted=counted),
    )


def _compare_marginals(release: PFDSRelease, model: PooledModel) -> list[QualityFinding]:
    """Return each feature's distance from the charged table it was sampled from."""
    params, n = release.params, len(release.dataset)
    [forecast] = forecast_pfds(params)
    # A cell's share is the sum of its sides, which have independent noise.
    deviation = forecast.value * math.sqrt(params.n_sides)
    findings = []
    for feature, start, end in zip(
        params.coded_schema.features, params.starts[:-1], params.starts[1:], strict=True
    ):
        shares = model.shares[start:end]
        distance = compute_total_variation(
            compute_shares(feature, release.dataset.columns[feature.name]), shares
        )
        beside = {
            "by drawing so many rows": compute_sampling_distance(shares, n),
            "by the noise in the table, at most about": compute_noise_distance(
                len(shares), deviation
            ),
        }
        findings.append(
            QualityFinding(
                what=f"total variation of {escape_text(feature.name)} from its table",
                value=distance,
                beside=beside,
                source=TABLES,
            )
        )
    return findings


def _compare_labels(release: PFDSRelease) -> list[QualityFinding]:
    """Return the label's shares or mean, with those among the rows that were asked.

    The two differ, because features are sampled independently.
    """
    label, dataset, model, counted = (
        release.params.label,
        release.dataset,
        release.model,
        release.noisy_count,
    )
    name = escape_text(label.name)
    if not isinstance(label, Categorical):
        low, high = float(label.low), float(label.high)
        beside = {"lowest": low, "highest": high} | (
            {} if counted is None else {CHARGED_COUNT: low + counted.shares[1] * (high - low)}
        )
        return [
            QualityFinding(
                what=f"mean of {name}",
                value=float(np.mean(dataset.labels)),
                beside=beside,
                source=_describe_source(counted=counted),
            )
        ]
    probabilities = None if model is None else model.probabilities(dataset.columns).mean(axis=0)
    source = _describe_source(*([] if model is None else ["the model"]), counted=counted)
    findings = []
    for i, (value, share) in enumerate(
        zip(label.values, compute_shares(label, dataset.labels), strict=True)
    ):
        beside = (
            {}
            if probabilities is None
            else {"by the model, on the same rows": float(probabilities[i])}
        )
        beside |= {} if counted is None else {CHARGED_COUNT: counted.shares[i]}
        findings.append(
            QualityFinding(
                what=f"share of {name} = {escape_text(value)}",
                value=float(share),
                beside=beside,
                source=source,
            )
        )
    return findings


def _describe_source(*others: str, counted: NoisyRowCount | None) -> str:
    *first, last = [ROWS, *others, *([] if counted is None else [STATED_COUNT])]
    return f"{', '.join(first)} and {last}" if first else last
