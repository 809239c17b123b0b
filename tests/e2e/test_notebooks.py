"""The notebooks of the examples run: the first one always, those on real data in `make soak`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat (the group dev) is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient (the group dev) is not installed")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "examples" / "notebooks"
DATA = Path(os.environ.get("SHOAL_DATA", ROOT / "../shared/data"))
LONG = sorted(path.stem for path in NOTEBOOKS.glob("*-*.ipynb"))
MAX_BYTES = 200_000


@pytest.mark.filterwarnings(
    "ignore"
)  # those of the kernel's client, about an event loop of its own
@pytest.mark.parametrize(
    "name", ["first", *(pytest.param(name, marks=pytest.mark.soak) for name in LONG)]
)
def test_notebook_runs_with_stored_outputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in LONG and not DATA.is_dir():
        pytest.skip(
            "the datasets are not in $SHOAL_DATA or ../shared/data; `make data` fetches them"
        )
    monkeypatch.setitem(os.environ, "SHOAL_DATA", str(DATA.resolve()))
    book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    kept = [_shown(cell) for cell in book.cells]
    nbclient.NotebookClient(
        book, timeout=300, resources={"metadata": {"path": str(NOTEBOOKS)}}
    ).execute()
    # Seeds are fixed, so that what a reader sees is what comes of it.
    assert [_shown(cell) for cell in book.cells] == kept


def _shown(cell: dict[str, object]) -> list[object]:
    return [out.get("text") or out["data"].get("text/plain") for out in cell.get("outputs", [])]  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_is_valid_and_small(path: Path) -> None:
    text = path.read_text()
    book = nbformat.reads(text, as_version=4)
    nbformat.validate(book)
    assert all(cell.get("outputs") for cell in book.cells[-2:] if cell.cell_type == "code")
    assert not any(
        out.output_type == "error" for cell in book.cells for out in cell.get("outputs", [])
    )
    assert len(text) < MAX_BYTES
    assert str(Path.home()) not in text and str(NOTEBOOKS.parents[2]) not in text


def test_each_protocol_has_notebook() -> None:
    assert {name.partition("-")[0] for name in LONG} == {"anonml", "ddml", "sdq", "pfds"}
