"""Before anything is asked: who may make a sum, and what all questions may cost together."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import pytest

from pfds_cases import STUDIES, logged
from shoal.errors import LocalProtocolError
from shoal.messages.codec import encode
from shoal.protocols.pfds.joining import check_terms, checked_prices, digest_of
from shoal.protocols.pfds.messages import Ask
from shoal.protocols.pfds.sums import SumScript
from shoal.protocols.sums.terms import Terms


@pytest.mark.parametrize(
    "changes, threshold",
    [({"n_holders": 6}, 4), ({"minimum": 5}, 4), ({}, 5), ({"minimum": 3, "max_colluders": 1}, 3), ({"max_colluders": 3}, 4)],
)
def test_a_roster_that_cannot_keep_the_promise_is_refused(changes: dict[str, int], threshold: int) -> None:
    terms = logged("sums")[0].terms
    check_terms(STUDIES["sums"], terms)
    with pytest.raises(LocalProtocolError, match="cannot keep") as caught:
        check_terms(replace(STUDIES["sums"], **changes), Terms(terms.study, terms.roster, threshold))  # type: ignore[arg-type]
    assert caught.value.code == "PROTO-001"


def test_nobody_answers_without_noise() -> None:
    for name in STUDIES:
        with pytest.raises(LocalProtocolError, match="without noise"):
            checked_prices(replace(STUDIES[name], epsilon=math.inf), {})


@pytest.mark.parametrize("name", ["sums", "gaussian", "three"])
def test_questions_that_cost_more_together_than_the_study_says_are_refused(name: str) -> None:
    prices = SumScript(STUDIES[name]).prices
    assert checked_prices(STUDIES[name], prices) == prices
    with pytest.raises(LocalProtocolError, match="cost more together"):
        checked_prices(STUDIES[name], {**prices, "more": prices["tables"]})


def test_a_release_without_a_rho_is_none_of_a_study_with_a_delta() -> None:
    pure = replace(STUDIES["gaussian"], delta=0.0)
    with pytest.raises(LocalProtocolError, match="cost more together"):
        checked_prices(STUDIES["gaussian"], {"tables": SumScript(pure).prices["search"]})


def test_a_question_is_named_by_all_that_is_in_it() -> None:
    aggregator = logged("sums")[0]
    course = aggregator.script.start
    asks = [Ask(study=aggregator.study, round=i, course=course.replace(intercept=j)) for i in (0, 1) for j in (0, 1)]
    assert len({digest_of(ask) for ask in asks}) == 4
    assert digest_of(asks[0]) == hashlib.sha256(encode(asks[0])).digest()
