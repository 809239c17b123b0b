"""The comparison with Flower, tested without Flower: processor time, cleanup, the study."""

from __future__ import annotations

import ssl
import sys
import time
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.competitors.environments import HERE
from benchmarks.speed import flower
from benchmarks.speed.flower.ours import N_ROWS, N_WEIGHTS, make_study_text
from benchmarks.speed.loopback_tls import make_certificate
from benchmarks.speed.processes import Program, ending, free_ports, until
from shoal.study.ddml import build_params
from shoal.study.loader import parse_study_text

_BURN = "import time\nwhile time.process_time() < {}: pass\n"
_CHILD = "import subprocess, sys\n{}subprocess.run([sys.executable, '-c', {!r}])\nsys.exit({})"
_SLEEP = "import time; time.sleep(600)"
_PARENT = (
    "import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', "
    f"{_SLEEP!r}]).pid, flush=True)\n{_SLEEP}"
)


def start_program(script: str, folder: Path) -> Program:
    return Program([sys.executable, "-c", script], {}, folder / "log")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_flower_benchmark_is_registered() -> None:
    assert command.BENCHMARKS["flower"][0] == flower.__name__


def test_time_of_a_program_includes_its_children(
    tmp_path: Path,
) -> None:
    program = start_program(_CHILD.format(_BURN.format(0.2), _BURN.format(0.3), 0), tmp_path)
    with ending([program]):
        # More than either process alone; the system counts in hundredths of a second.
        assert program.wait(60) >= 0.45


def test_failed_program_raises_an_error_with_its_output(tmp_path: Path) -> None:
    program = start_program("import sys; print('out of rows'); sys.exit(3)", tmp_path)
    with ending([program]), pytest.raises(RuntimeError, match="out of rows"):
        program.wait(60)


@pytest.mark.parametrize("is_killed_first", [False, True])
def test_ending_stops_children_of_a_program(tmp_path: Path, is_killed_first: bool) -> None:
    program = start_program(_PARENT, tmp_path)
    with ending([program]):
        assert until(lambda: program.said.endswith("\n"), 60, [program])
        child = int(program.said)
        if is_killed_first:
            program.kill()
            assert not program.is_running
        assert is_alive(child)
    assert not program.is_running
    assert until(lambda: not is_alive(child), 60)


def test_until_times_out_and_reports_an_ended_program(tmp_path: Path) -> None:
    began = time.monotonic()
    assert not until(lambda: False, 0.0)
    program = start_program("print('gone')", tmp_path)
    with ending([program]), pytest.raises(RuntimeError, match="gone"):
        until(lambda: time.monotonic() > began + 60, 60, [program])


def test_certificate_is_self_signed_and_matches_its_key(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    assert len(ssl.create_default_context(cafile=certificate).get_ca_certs()) == 1


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(5))) == 5


@pytest.mark.parametrize("n_updates", [10, 60])
def test_study_has_the_workload_of_flower_and_constant_noise(
    n_updates: int,
) -> None:
    study = parse_study_text(make_study_text(n_updates))
    params = build_params(study)
    assert (params.n_weights, params.batch_size, params.epsilon_release) == (N_WEIGHTS, N_ROWS, 1.0)
    assert study.ddml is not None and study.ddml.admission == "signed"
    other = (HERE / "flower_app.py").read_text()
    assert f"N_WEIGHTS, N_ROWS, LEARNING_RATE = {N_WEIGHTS}, {N_ROWS}, " in other
