"""The comparison with Flower, as far as it can be tested without Flower: what is counted of a program, how it is ended, and the study."""

from __future__ import annotations

import ssl
import sys
import time
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.speed import flower, flower_ours
from benchmarks.speed.flower_ours import N_ROWS, N_WEIGHTS, study_text
from benchmarks.speed.loopback_tls import make_certificate
from benchmarks.speed.processes import Program, ending, free_ports, until
from shoal.study.ddml import params_of
from shoal.study.load import parse

_BURN = "import time\nwhile time.process_time() < {}: pass\n"
_CHILD = "import subprocess, sys\n{}subprocess.run([sys.executable, '-c', {!r}])\nsys.exit({})"
_SLEEP = "import time; time.sleep(600)"
_PARENT = f"import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', {_SLEEP!r}]).pid, flush=True)\n{_SLEEP}"


def run(script: str, folder: Path) -> Program:
    return Program([sys.executable, "-c", script], {}, folder / "log")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_is_registered() -> None:
    assert command.BENCHMARKS["flower"][0] == flower.__name__


def test_time_of_a_program_includes_that_of_what_it_started_and_both_have_ended(tmp_path: Path) -> None:
    program = run(_CHILD.format(_BURN.format(0.2), _BURN.format(0.3), 0), tmp_path)
    with ending([program]):
        # More than either has burnt by itself; the system counts in hundredths.
        assert program.wait(60) >= 0.45


def test_a_program_that_fails_is_told_with_its_output(tmp_path: Path) -> None:
    program = run("import sys; print('out of rows'); sys.exit(3)", tmp_path)
    with ending([program]), pytest.raises(RuntimeError, match="out of rows"):
        program.wait(60)


@pytest.mark.parametrize("is_killed_first", [False, True])
def test_what_a_program_leaves_behind_is_ended_too(tmp_path: Path, is_killed_first: bool) -> None:
    program = run(_PARENT, tmp_path)
    with ending([program]):
        assert until(lambda: program.said.endswith("\n"), 60, [program])
        child = int(program.said)
        if is_killed_first:
            program.kill()
            assert not program.is_running
        assert is_alive(child)
    assert not program.is_running
    assert until(lambda: not is_alive(child), 60)


def test_until_gives_up_and_tells_when_a_program_has_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    assert not until(lambda: False, 0.0)
    program = run("print('gone')", tmp_path)
    with ending([program]), pytest.raises(RuntimeError, match="gone"):
        until(lambda: time.monotonic() > began + 60, 60, [program])


def test_certificate_is_its_own_authority_and_fits_its_key(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    assert len(ssl.create_default_context(cafile=certificate).get_ca_certs()) == 1


def test_ports_are_different() -> None:
    assert len(set(free_ports(5))) == 5


@pytest.mark.parametrize("n_updates", [10, 60])
def test_study_is_the_work_of_the_other_side_with_the_same_noise_in_every_run(n_updates: int) -> None:
    study = parse(study_text(n_updates))
    params = params_of(study)
    assert (params.n_weights, params.batch_size, params.epsilon_release) == (N_WEIGHTS, N_ROWS, 1.0)
    assert study.ddml is not None and study.ddml.admission == "signed"
    other = (Path(flower_ours.__file__).parent / "peer_flower_app.py").read_text()
    assert f"N_WEIGHTS, N_ROWS, LEARNING_RATE = {N_WEIGHTS}, {N_ROWS}, " in other
