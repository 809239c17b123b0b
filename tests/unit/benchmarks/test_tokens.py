"""The benchmark of anonymous packets: its parts, and the cost of a million packets."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from benchmarks import __main__ as command
from benchmarks.speed import tokens
from benchmarks.speed.tokens import credentials as tokens_credentials
from shoal.crypto.credentials.issuance import Issuer
from shoal.crypto.credentials.tokens import TokenVerifier
from shoal.entropy import SystemEntropy


def test_parts_of_the_token_benchmark_exist() -> None:
    assert command.BENCHMARKS["tokens"][0] == tokens.__name__
    assert all(find_spec(f"benchmarks.speed.tokens.{part}") for part in tokens.PARTS)
    assert list(tokens.measures(only="no part of it")) == []


def test_cost_of_a_million_packets_follows_from_measures() -> None:
    found = {
        "mint_ms": 3.0,
        "verify_per_s_batched_strict": 1000.0,
        "tor_cpu_ms_per_packet": 6.0,
        "token_bytes": 496.0,
    }
    minutes = {one.measure: one.value for one in tokens.of_a_million(found)}
    assert minutes == {
        "cpu_minutes_per_million_mint": 50,
        "cpu_minutes_per_million_tor": 100,
        "cpu_minutes_per_million_verify": pytest.approx(1000 / 60),
    }


def test_minted_tokens_are_distinct_and_valid() -> None:
    issuer = Issuer.from_seed(bytes(32))
    many = tokens_credentials._mint_tokens(issuer, 3, SystemEntropy())
    assert len({one.context for one in many}) == 3
    assert all(TokenVerifier(issuer.key, tokens_credentials.SCOPE).verify_many(many))
