from shoal.transport.routes import study_route


def test_routes_of_a_study() -> None:
    assert study_route("ab") == "/v1/studies/ab" and study_route("ab", "draw") == "/v1/studies/ab/draw"
