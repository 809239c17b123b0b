"""The example in docs/reference/model.md runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shoal.models.model import MODEL_KINDS

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "model.md").read_text("utf-8")


def test_example_of_model_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "model.md", "exec"), names)
    assert names["label"].shape == (3,) and set(names["label"]) <= {"no", "yes"}
    np.testing.assert_allclose(names["probabilities"].sum(axis=1), 1)
    expected = names["clf"].predict_proba(
        pd.DataFrame({"age": [23, 71, None], "smokes": ["no", "yes", None]})
    )
    np.testing.assert_allclose(names["probabilities"], expected, atol=1e-6)
    assert "true epsilon 4.0, delta 0 (" in capsys.readouterr().out


def test_model_page_explains_every_kind() -> None:
    for kind in MODEL_KINDS:
        assert f"\n| `{kind}` | " in PAGE
