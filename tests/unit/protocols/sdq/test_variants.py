"""The script of each variant, learner and choice."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.protocols.sdq.naive_bayes import SDQNaiveBayesScript
from shoal.protocols.sdq.paper import SDQPaperScript
from shoal.protocols.sdq.params import SDQParams
from shoal.protocols.sdq.plus import SDQPlusScript, SDQRankedScript
from shoal.protocols.sdq.variants import make_sdq_script
from tests.support.sdq import make_schema


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, SDQPlusScript),
        ({"choice": "sums"}, SDQRankedScript),
        ({"learner": "naive-bayes"}, SDQNaiveBayesScript),
        ({"learner": "naive-bayes", "choice": "sums"}, SDQNaiveBayesScript),
        ({"variant": "paper"}, SDQPaperScript),
        ({"variant": "paper", "trust": "local", "choice": "sums"}, SDQPaperScript),
    ],
)
def test_make_sdq_script_depends_on_variant_learner_and_choice(
    settings: dict[str, Any], kind: type
) -> None:
    params = SDQParams(make_schema((2, 3), 2), 1.0, 1000, **settings)
    script = make_sdq_script(params)
    assert type(script) is kind and script.params is params
