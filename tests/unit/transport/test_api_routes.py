"""Paths of the HTTP API."""

from shoal.transport.api import study_route


def test_study_route_returns_paths_of_study() -> None:
    assert (
        study_route("ab") == "/v1/studies/ab" and study_route("ab", "draw") == "/v1/studies/ab/draw"
    )
