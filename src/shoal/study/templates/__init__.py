"""Starter studies, one per protocol, and rows made up to go with them."""

from __future__ import annotations

import csv
import io
from importlib import resources
from string import Template

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Feature
from shoal.entropy import Entropy
from shoal.study.spec import Study

PROTOCOLS = ("anonml", "ddml", "sdq", "pfds")

_GAP = 0.03


def study_text(protocol: str) -> str:
    """The starter study of a protocol, as TOML."""
    return (resources.files(__package__) / f"{protocol}.toml").read_text("utf-8")


def readme_text(study: Study) -> str:
    """The page that goes with a starter study."""
    text = (resources.files(__package__) / "README.md").read_text("utf-8")
    return Template(text).substitute(title=study.title, protocol=study.protocol)


def example_csv(study: Study, n: int, entropy: Entropy) -> str:
    """Made-up rows that fit the study's schema: every column leans on one hidden trait, so that there is something to learn.

    Parameters
    ----------
    study
        Names, ranges and categories.
    n
        Number of rows.
    entropy
        Where the rows come from; nothing else goes into them.
    """
    schema = study.schema()
    trait = (_uniform(n, entropy) + _uniform(n, entropy)) / 2
    columns: dict[str, list[str]] = {}
    if study.data is not None:
        people = entropy.below_many(max(1, 3 * n // 4), n)
        columns[study.data.person] = [f"p{person:05d}" for person in people]
    for position, feature in enumerate(schema.features):
        lean = 0.6 / (1 + position)
        columns[feature.name] = _cells(feature, lean * trait + (1 - lean) * _uniform(n, entropy), entropy)
    for words in schema.texts:
        columns[words.name] = _texts(trait, entropy)
    if schema.label is not None:
        columns[schema.label.name] = _cells(schema.label, 0.8 * trait + 0.2 * _uniform(n, entropy), entropy)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _cells(feature: Feature, place: npt.NDArray[np.float64], entropy: Entropy) -> list[str]:
    """A column from places in [0, 1): low places give low numbers and early categories."""
    if isinstance(feature, Categorical):
        texts = [feature.values[int(p * len(feature.values))] for p in place]
    else:
        # Squaring makes small numbers common and large ones rare, as amounts and durations are.
        numbers = feature.low + (feature.high - feature.low) * place**2
        whole = float(feature.low).is_integer() and feature.high - feature.low >= 10
        texts = [str(int(number)) if whole else f"{number:.4g}" for number in numbers]
        texts = [text if feature.low <= float(text) <= feature.high else repr(feature.low) for text in texts]
    gone = _uniform(place.size, entropy) < (_GAP if feature.missing else 0.0)
    return ["" if is_gone else text for text, is_gone in zip(texts, gone, strict=True)]


def _texts(trait: npt.NDArray[np.float64], entropy: Entropy) -> list[str]:
    """Three words to a row, of a hundred that there are; a high trait makes late ones likely."""
    places = [(trait + _uniform(trait.size, entropy)) / 2 for _ in range(3)]
    return [" ".join(f"word{int(100 * place)}" for place in row) for row in zip(*places, strict=True)]


def _uniform(n: int, entropy: Entropy) -> npt.NDArray[np.float64]:
    return entropy.below_many(1 << 32, n) / float(1 << 32)
