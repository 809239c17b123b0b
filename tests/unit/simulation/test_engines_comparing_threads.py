"""One thread during a comparison; earlier settings are restored."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from threadpoolctl import threadpool_info

from shoal.simulation.engines import use_one_thread

NAME = "OPENBLAS_NUM_THREADS"


def threads() -> list[int]:
    return [
        library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
    ]


def test_use_one_thread_applies_to_this_process_and_its_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import numpy as np

    np.eye(2) @ np.eye(2)
    monkeypatch.delenv(NAME, raising=False)
    before = threads()
    with use_one_thread():
        assert set(threads()) == {1}
        told = subprocess.run(
            [sys.executable, "-c", f"import os; print(os.environ['{NAME}'])"],
            capture_output=True,
            check=True,
        ).stdout
        assert told.strip() == b"1"
    assert threads() == before and NAME not in os.environ


def test_use_one_thread_keeps_the_users_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "3")
    with use_one_thread():
        assert os.environ[NAME] == "3"
    assert os.environ[NAME] == "3"


def test_use_one_thread_restores_everything_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    with pytest.raises(KeyError), use_one_thread():
        raise KeyError
    assert NAME not in os.environ


def test_use_one_thread_without_threadpoolctl_sets_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    monkeypatch.delenv(NAME, raising=False)
    with use_one_thread():
        assert os.environ[NAME] == "1"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: NAME in os.environ).result() is False
