"""One thread while something is compared, and what was before afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from threadpoolctl import threadpool_info

from shoal.sim.comparing_threads import one_thread

NAME = "OPENBLAS_NUM_THREADS"


def threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_this_process_and_those_that_it_starts_use_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    np.eye(2) @ np.eye(2)
    monkeypatch.delenv(NAME, raising=False)
    before = threads()
    with one_thread():
        assert set(threads()) == {1}
        told = subprocess.run([sys.executable, "-c", f"import os; print(os.environ['{NAME}'])"], capture_output=True, check=True).stdout
        assert told.strip() == b"1"
    assert threads() == before and NAME not in os.environ


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "3")
    with one_thread():
        assert os.environ[NAME] == "3"
    assert os.environ[NAME] == "3"


def test_after_an_error_all_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    with pytest.raises(KeyError), one_thread():
        raise KeyError
    assert NAME not in os.environ


def test_without_the_means_to_limit_what_is_loaded_the_environment_still_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    monkeypatch.delenv(NAME, raising=False)
    with one_thread():
        assert os.environ[NAME] == "1"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: NAME in os.environ).result() is False
