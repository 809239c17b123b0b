"""``shoal doctor``: what is missing or broken on this machine, with the command that mends it; and other people's epsilons."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from shoal.cli.doctor_checks import BROKEN, Finding, examine
from shoal.cli.doctor_epsilon import epsilon
from shoal.cli.doctor_view import paragraph
from shoal.cli.output import emit
from shoal.names import counted

app = App(name="doctor", help="What is missing here, and how to mend it; what a configuration's epsilon really is.", help_format="markdown")
app.command(epsilon)


@app.default
def doctor(*, ledger: Path | None = None, port: int = 8700, json: bool = False) -> None:
    """Look at this machine: versions, extras, clock, entropy, disk, ledger, port, SQLite, Tor, core dumps, memory.

    Nothing is sent, spent or changed, and no other machine is asked. The exit code is 0 unless something is broken; an extra that is not
    installed is missing, and not broken.

    Parameters
    ----------
    ledger
        The ledger file; SHOAL_LEDGER or the user's data directory where it is not given.
    port
        The port on which a coordinator would listen.
    json
        Print one JSON object.
    """
    findings = examine(ledger, port)
    broken = [finding for finding in findings if finding.state == BROKEN]
    data = {"ok": not broken, "checks": [finding.to_dict() for finding in findings]}
    next_command = "shoal hello" if not broken else broken[0].fix
    emit(
        data, "\n".join(line for finding in findings for line in _lines(finding)) + _summary(findings), json=json, next_command=next_command
    )
    if broken:
        raise SystemExit(1)


def _lines(finding: Finding) -> list[str]:
    lines = paragraph(finding.name, finding.what)
    marked = [f"{finding.state if i == 0 else '':<9}{line}" for i, line in enumerate(lines)]
    return marked if finding.fix is None else [*marked, f"{'':<9}{'':<14}{finding.fix}"]


def _summary(findings: list[Finding]) -> str:
    counts = {state: sum(finding.state == state for finding in findings) for state in dict.fromkeys(finding.state for finding in findings)}
    return "\n\n" + ", ".join(f"{n} {state}" for state, n in counts.items()) + f" of {counted(len(findings), 'check')}"
