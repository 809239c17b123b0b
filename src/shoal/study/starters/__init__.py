"""Starter studies, one for each protocol, and made-up example rows.

``shoal new`` and `shoal.study.starters.drafts` call it. The rows depend on the study and on the
entropy alone, so that they contain no real data.
"""

from __future__ import annotations

import csv
import io
from importlib import resources
from string import Template

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Categorical, Feature
from shoal.entropy import Entropy
from shoal.study.registry import PROTOCOLS
from shoal.study.spec import Study

STARTER_PROTOCOLS = tuple(PROTOCOLS)

_MISSING_SHARE = 0.03


def read_starter(protocol: str) -> str:
    """Return the starter study of a protocol, as TOML."""
    return (resources.files(__package__) / f"{protocol}.toml").read_text("utf-8")


def format_readme(study: Study) -> str:
    """Return the README of a starter study."""
    text = (resources.files(__package__) / "README.md").read_text("utf-8")
    return Template(text).substitute(title=study.title, protocol=study.protocol)


def make_example_csv(study: Study, n: int, entropy: Entropy) -> str:
    """Return `n` made-up rows that fit the study's schema, as CSV.

    Every column depends on one hidden trait, so that there is something to learn. The rows contain
    the study's names, ranges and categories, randomness from `entropy`, and nothing else.
    """
    schema = study.schema()
    trait = (_draw_uniform(n, entropy) + _draw_uniform(n, entropy)) / 2
    columns: dict[str, list[str]] = {}
    if study.data is not None:
        people = entropy.below_many(max(1, 3 * n // 4), n)
        columns[study.data.person] = [f"p{person:05d}" for person in people]
    for position, feature in enumerate(schema.features):
        weight = 0.6 / (1 + position)
        columns[feature.name] = _make_cells(
            feature, weight * trait + (1 - weight) * _draw_uniform(n, entropy), entropy
        )
    for words in schema.texts:
        columns[words.name] = _make_texts(trait, entropy)
    if schema.label is not None:
        columns[schema.label.name] = _make_cells(
            schema.label, 0.8 * trait + 0.2 * _draw_uniform(n, entropy), entropy
        )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _make_cells(
    feature: Feature, quantiles: npt.NDArray[np.float64], entropy: Entropy
) -> list[str]:
    """Return a column from quantiles in [0, 1): low ones give low numbers and early categories."""
    if isinstance(feature, Categorical):
        texts = [feature.values[int(p * len(feature.values))] for p in quantiles]
    else:
        # Squaring makes small numbers common and large ones rare, as amounts and durations are.
        numbers = feature.low + (feature.high - feature.low) * quantiles**2
        is_whole = float(feature.low).is_integer() and feature.high - feature.low >= 10
        texts = [str(int(number)) if is_whole else f"{number:.4g}" for number in numbers]
        texts = [
            text if feature.low <= float(text) <= feature.high else repr(feature.low)
            for text in texts
        ]
    share = _MISSING_SHARE if feature.missing else 0.0
    is_missing = _draw_uniform(quantiles.size, entropy) < share
    return ["" if missing else text for text, missing in zip(texts, is_missing, strict=True)]


def _make_texts(trait: npt.NDArray[np.float64], entropy: Entropy) -> list[str]:
    """Return three of a hundred words for each row; a high trait makes late words likely."""
    quantiles = [(trait + _draw_uniform(trait.size, entropy)) / 2 for _ in range(3)]
    return [" ".join(f"word{int(100 * q)}" for q in row) for row in zip(*quantiles, strict=True)]


def _draw_uniform(n: int, entropy: Entropy) -> npt.NDArray[np.float64]:
    return entropy.below_many(1 << 32, n) / float(1 << 32)
