"""Checks before the first question: roster of a sum, and the total price."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import pytest

from shoal.errors import LocalProtocolError
from shoal.messages.codec import encode
from shoal.protocols.pfds.messages import PFDSAsk, compute_ask_digest
from shoal.protocols.pfds.params import check_prices, check_sum_parameters
from shoal.protocols.pfds.script import SecureSumScript
from shoal.protocols.secagg.messages import SumParameters
from tests.support.pfds import STUDIES, logged


@pytest.mark.parametrize(
    "changes, threshold",
    [
        ({"n_holders": 6}, 4),
        ({"minimum": 5}, 4),
        ({}, 5),
        ({"minimum": 3, "max_colluders": 1}, 3),
        ({"max_colluders": 3}, 4),
    ],
)
def test_check_sum_parameters_rejects_unsafe_rosters(
    changes: dict[str, int], threshold: int
) -> None:
    terms = logged("sums")[0].sum_params
    check_sum_parameters(STUDIES["sums"], terms)
    with pytest.raises(LocalProtocolError, match="does not fit the study") as caught:
        check_sum_parameters(
            replace(STUDIES["sums"], **changes), SumParameters(terms.study, terms.roster, threshold)
        )  # type: ignore[arg-type]
    assert caught.value.code == "PROTO-001"


def test_check_prices_rejects_noiseless_study() -> None:
    for name in STUDIES:
        with pytest.raises(LocalProtocolError, match="without noise"):
            check_prices(replace(STUDIES[name], epsilon=math.inf), {})


@pytest.mark.parametrize("name", ["sums", "gaussian", "three"])
def test_check_prices_rejects_prices_above_the_budget(name: str) -> None:
    prices = SecureSumScript(STUDIES[name]).prices
    assert check_prices(STUDIES[name], prices) == prices
    with pytest.raises(LocalProtocolError, match="cost more together"):
        check_prices(STUDIES[name], {**prices, "more": prices["tables"]})


def test_check_prices_rejects_price_without_rho_if_delta_is_set() -> None:
    pure = replace(STUDIES["gaussian"], delta=0.0)
    with pytest.raises(LocalProtocolError, match="cost more together"):
        check_prices(STUDIES["gaussian"], {"tables": SecureSumScript(pure).prices["search"]})


def test_ask_digest_depends_on_every_field() -> None:
    aggregator = logged("sums")[0]
    course = aggregator.script.initial_state
    asks = [
        PFDSAsk(study=aggregator.study, round=i, course=course.replace(intercept=j))
        for i in (0, 1)
        for j in (0, 1)
    ]
    assert len({compute_ask_digest(ask) for ask in asks}) == 4
    assert compute_ask_digest(asks[0]) == hashlib.sha256(encode(asks[0])).digest()
