"""Every study has its script."""

from __future__ import annotations

from typing import Any

import pytest

from sdq_trees import schema_of
from shoal.protocols.sdq.bayes import BayesScript
from shoal.protocols.sdq.paper import PaperScript
from shoal.protocols.sdq.params import Params
from shoal.protocols.sdq.plus import PlusScript
from shoal.protocols.sdq.ranked import RankedScript
from shoal.protocols.sdq.scripts import script_of


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, PlusScript),
        ({"choice": "sums"}, RankedScript),
        ({"learner": "naive-bayes"}, BayesScript),
        ({"learner": "naive-bayes", "choice": "sums"}, BayesScript),
        ({"variant": "paper"}, PaperScript),
        ({"variant": "paper", "trust": "local", "choice": "sums"}, PaperScript),
    ],
)
def test_by_variant_learner_and_choice(settings: dict[str, Any], kind: type) -> None:
    params = Params(schema_of((2, 3), 2), 1.0, 1000, **settings)
    script = script_of(params)
    assert type(script) is kind and script.params is params
