"""The benchmarks' frame: it lists them, and a measure prints as the object that readers rely on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import Measure, rate

ROOT = Path(__file__).parent.parent.parent


def test_lists_benchmarks() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks", "list"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0
    assert "samplers" in done.stdout


def test_a_measure_is_one_json_object() -> None:
    measure = Measure("samplers", "laplace_vs_opendp", 440.0, "x", "higher", 100, "opendp", 440.0)
    assert list(json.loads(measure.to_json())) == ["bench", "measure", "value", "unit", "better", "target", "peer", "ratio"]
    assert "440 x opendp" in measure.to_text()
    assert measure.to_text().endswith("met")


def test_a_missed_target_is_said() -> None:
    assert Measure("install", "core_mb", 130, "MB", "lower", target=100).to_text().endswith("NOT MET")
    assert json.loads(Measure("install", "core_mb", 130, "MB", "lower").to_json())["target"] is None


def test_rate_counts_work_by_processor_time() -> None:
    assert rate(lambda: sum(range(20_000)), 20_000, seconds=0.01) > 0
