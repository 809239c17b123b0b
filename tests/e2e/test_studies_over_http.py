"""All protocols between real processes over TLS: serve, join and fleets, with both stores.

Tables are read from every kind of file. A study ends with a model that counts all answers. Each
ledger has spent exactly the price on the label, and can be verified. Shared releases pass their
check, and a reader gets the published model.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from shoal.coordinator.store import open_store
from shoal.privacy.rounding import grains_up
from shoal.study.attachments import load_roster
from shoal.study.delivery import has_tokens
from shoal.study.loader import load_study
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from tests.support.participants import folder, make_document, make_table
from tests.support.servers import (
    Coordinator,
    Participant,
    Postgres,
    Process,
    Redis,
    fleet,
    format_toml,
    wait_for_results,
    write_csv,
    write_roster,
)
from tests.support.tls import Certificates

__all__ = ["folder"]

N_UPDATES = 2


@dataclass(frozen=True)
class Case:
    """A study and its participants, by ``shoal join`` and in a fleet, with rows each."""

    protocol: str
    n: int
    rows: int = 40
    n_fleet: int = 0
    has_roster: bool = False
    document: dict[str, Any] = field(default_factory=dict)


def ddml(admission: str, n_fleet: int = 18) -> Case:
    """Return a case that expects fewer updates than are sent: one of 200 is taken for spam."""
    n_expected = n_fleet - n_fleet // 6
    document = {
        "participation": {"minimum": n_expected, "size": n_expected},
        "privacy": {"epsilon": 4.0, "n_updates": N_UPDATES},
        "ddml": {"n_instances": 2, "admission": admission},
    }
    return Case("ddml", 3, 20, n_fleet, document=document)


def anonml(n_fleet: int) -> Case:
    return Case(
        "anonml",
        3,
        1,
        n_fleet,
        document={"participation": {"minimum": n_fleet, "size": n_fleet + 3}},
    )


def sdq(n: int, **settings: Any) -> Case:
    return Case("sdq", n, has_roster=True, document={"sdq": {"n_databases": n, **settings}})


def pfds(**document: Any) -> Case:
    return Case(
        "pfds",
        3,
        has_roster=document.get("trust") == "secure-sum",
        document={"pfds": {"n_holders": 3}, **document},
    )


CASES = {
    "anonml": anonml(30),
    "anonml, hundreds": anonml(200),
    "ddml, signed": ddml("signed"),
    "ddml, token": ddml("token"),
    "ddml, open": ddml("open"),
    "ddml, hundreds": ddml("token", 300),
    "sdq, ten databases": sdq(10, depth=2, choice="mpc"),
    "sdq, sums": sdq(3, max_colluders=1, depth=1, choice="sums"),
    "pfds, local": pfds(),
    "pfds, sums": pfds(trust="secure-sum"),
    "pfds, paper": pfds(variant="paper"),
}


def cases(protocols: str, *always: str) -> list[Any]:
    """Return the cases of some protocols; all except ``always`` run in `make soak` only."""
    found = [name for name, case in CASES.items() if case.protocol in protocols]
    return [pytest.param(name, marks=() if name in always else pytest.mark.soak) for name in found]


ON_SQLITE = ("sdq, ten databases", "pfds, sums")
ON_POSTGRESQL = ("anonml", "ddml, token")


@pytest.mark.parametrize("name", cases("anonml ddml sdq pfds", *ON_SQLITE))
def test_study_over_http_on_sqlite(
    folder: Path, certificates: Certificates, stack: ExitStack, name: str
) -> None:
    run(CASES[name], folder, certificates, stack, "sqlite:coordinator.db")


@pytest.mark.parametrize("name", cases("anonml ddml sdq pfds", *ON_POSTGRESQL))
def test_study_over_http_on_postgresql(
    folder: Path, certificates: Certificates, stack: ExitStack, postgres_server: Postgres, name: str
) -> None:
    run(CASES[name], folder, certificates, stack, postgres_server.new_database(), "--workers", "2")


@pytest.mark.parametrize("name", cases("ddml", "ddml, signed"))
def test_study_over_http_with_instances_in_redis(
    folder: Path, certificates: Certificates, stack: ExitStack, redis_server: Redis, name: str
) -> None:
    run(
        CASES[name],
        folder,
        certificates,
        stack,
        "sqlite:coordinator.db",
        "--models",
        redis_server.url,
    )


def write_rows(path: Path, n: int, seed: int) -> str:
    """Write rows in one of three file formats; return the argument for ``--data``."""
    match seed % 3:
        case 0:
            return str(write_csv(path.with_suffix(".csv"), n, seed))
        case 1:
            columns = {name: column.tolist() for name, column in make_table(n, seed).items()}
            parquet.write_table(pa.table(columns), path.with_suffix(".parquet"))
            return str(path.with_suffix(".parquet"))
        case _:
            with closing(sqlite3.connect(path.with_suffix(".sqlite"))) as db, db:
                db.execute("CREATE TABLE days (wind TEXT, heat REAL, play TEXT)")
                db.executemany("INSERT INTO days VALUES (:wind, :heat, :play)", _make_rows(n, seed))
            return f"{path.with_suffix('.sqlite')}#days"


def _make_rows(n: int, seed: int) -> list[dict[str, Any]]:
    table = {name: column.tolist() for name, column in make_table(n, seed).items()}
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def run(
    case: Case, home: Path, tls: Certificates, stack: ExitStack, store: str, *where: str
) -> None:
    """Run a study with all participants, and compare results and prices with the label."""
    people = [Participant(home, f"site-{i}") for i in range(case.n)]
    data = {one.name: write_rows(home / one.name, case.rows, i) for i, one in enumerate(people)}
    (home / "study.toml").write_text(
        format_toml(make_document(case.protocol, case.n, **case.document))
    )
    roster = ("--roster", write_roster(stack, people)) if case.has_roster else ()
    # With tokens the people of AnonML would send at times of their own, drawn over the whole phase:
    # see the tests of anonymous studies.
    tickets = ("--tickets",) if case.protocol == "anonml" else ()
    words = ("study.toml", "--port", "0", "--store", store, *roster, *tickets, *where)
    coordinator = stack.enter_context(Coordinator(home, *words, tls=tls))

    is_shared = case.protocol == "pfds"
    joins = [
        one.join(
            coordinator, *(("--out", home / one.name) if is_shared else ()), data=data[one.name]
        )
        for one in people
    ]
    joins += (
        [Participant(home, "reader").read(coordinator, "--out", home / "reader")]
        if is_shared
        else []
    )
    # The people of AnonML wait for each other; a device waits for nobody, and the fleet would end
    # the study before these have begun.
    told = wait_for_results(stack, joins) if case.protocol == "ddml" else []
    if case.n_fleet:
        rows = write_csv(home / "rows.csv", case.rows * case.n_fleet, "fleet")
        crowd = fleet(home / "fleet", coordinator, rows, home, case.n_fleet)
        stack.callback(crowd.kill)
        people += [Participant(home, f"participant-{i:05d}") for i in range(case.n_fleet)]
        assert crowd.wait() == 0, crowd.read_output()
    told = told or wait_for_results(stack, joins)
    assert {one["standing"] for one in told} == {"finished"}

    model, label = coordinator.model(), coordinator.get("label").json()
    if is_shared:
        assert json.loads((home / "reader" / "model.json").read_bytes()) == model
        check_releases(home, people)
    verified = people[0].start("ledger verify").wait_for_result()
    assert verified["records"] > 0 and coordinator.end() == (0, "")

    assert model["study"] == coordinator.studies[0] and model["model"]
    with open_store(store.replace("sqlite:", f"sqlite:{home}/")) as kept:
        hosted = kept.find_study(model["study"])
        assert hosted is not None
        manifest = Manifest.from_bytes(hosted.manifest)
        assert manifest.study == load_study(home / "study.toml")
        assert manifest.roster == (load_roster(home / "roster.toml") if case.has_roster else ())
        assert has_tokens(manifest) == ("token" in str(case.document.get("ddml")))
        check_price(case, manifest, label, people)
        check_counts(case, model["counts"], kept.count_totals(model["study"]).refused, people)


def check_price(
    case: Case, manifest: Manifest, label: dict[str, Any], people: list[Participant]
) -> None:
    """Check that each participant spent the exact price; a late device may spend less."""
    charges = make_plan(manifest.study, manifest.digest).charges
    price = sum(grains_up(event.epsilon) for event in charges)
    assert 0 <= grains_up(label["everything"]["epsilon"]) - price <= len(charges)
    spent = [one.grains(manifest.digest.hex()) for one in people]
    if case.protocol == "ddml":
        assert (
            max(spent) <= price
            and spent.count(price) >= manifest.study.participation.size // N_UPDATES
        )
    else:
        assert set(spent) == {price}


def check_counts(
    case: Case, counts: dict[str, Any], refused: dict[str, int], people: list[Participant]
) -> None:
    """Check that each sent answer is in the model or was rejected, once."""
    n_sent = sum(len(one.entries()) for one in people)
    match case.protocol:
        case "anonml":
            assert (sum(counts["answers"]), counts["late"]) == (n_sent, 0)
        case "ddml":
            assert counts["merged"] + sum(refused.values()) == n_sent
            assert counts["merged"] >= case.document["participation"]["size"] * N_UPDATES and set(
                refused
            ) <= {
                "spam",
                "stale",
                "HOST-002",
                "AUTH-002",
            }
        case "sdq":
            assert set(counts["answering"]) == {case.n}
        case "pfds":
            assert counts["left_out"] == []
    assert case.protocol == "ddml" or refused == {}


def check_releases(home: Path, people: list[Participant]) -> None:
    """Check each holder's release with ``shoal release check``."""
    checks = [
        Process(home / f"{one.name}-check", ["release", "check", home / one.name / "release"])
        for one in people
    ]
    assert [check.wait() for check in checks] == [0] * len(people), [
        check.read_output() for check in checks
    ]
