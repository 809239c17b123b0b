"""``shoal model``: show what was learned, predict with it, and write it for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cyclopts import App

from shoal.cli.check import read_table
from shoal.cli.model_view import described, described_data, exported, predicted, predicted_csv, predicted_data
from shoal.cli.output import emit
from shoal.errors import SpecError
from shoal.models import export_json, export_onnx, load_model
from shoal.models.files import check_new, write_new
from shoal.models.strangers import strangers
from shoal.names import shell_word, shown
from shoal.protocols.sdq.model import Tree

app = App(name="model", help="What was learned: show it, predict with it, export it.", help_format="markdown")

_ROWS = "rows.csv"


@app.command
def show(path: Path, /, *, svg: Path | None = None, json: bool = False) -> None:
    """Say in words what a model predicts, from what, how, and under which guarantee.

    Parameters
    ----------
    path
        The model: a model.json of shoal simulate or shoal join, a coordinator's result, or what shoal model export wrote.
    svg
        A new file for a picture of the model, if it is a tree.
    json
        Print one JSON object.
    """
    model = load_model(path)
    if svg is not None:
        if not isinstance(model.learned, Tree):
            what = f"A model of the kind {model.kind} has no picture; only a tree is drawn."
            raise SpecError("MODEL-002", what, fix="Leave out --svg; its weights are printed.")
        write_new(svg, model.learned.to_svg().encode())
    wrote = "" if svg is None else f"\nwrote     {shown(str(svg))}"
    data = described_data(model) | {"file": str(path), "svg": None if svg is None else str(svg)}
    emit(data, f"{described(model, path)}{wrote}", json=json, next_command=f"shoal model predict {shell_word(path)} --data {_ROWS}")


@app.command
def predict(path: Path, /, *, data: str, out: Path | None = None, json: bool = False) -> None:
    """Predict the label of each row of a table, here: the rows go nowhere.

    Numbers outside their range are clipped to it, and categories that the model does not know count as unknown; how many is told. A value
    may be missing only where the model's study allows it.

    Parameters
    ----------
    path
        The model.
    data
        A table (.csv, .csv.gz, .parquet, .db#table) with a column for each feature; the label and other columns are not looked at.
    out
        A new CSV file: a line for each row, with what is predicted and the chance of each class.
    json
        Print one JSON object.
    """
    model, columns = load_model(path), read_table(data)
    if out is not None:
        check_new(out)
    labels = model.predict(columns)
    chances = model.probabilities(columns) if model.classes else None
    strange = strangers(model.schema, columns)
    base = f"shoal model predict {shell_word(path)} --data {shell_word(data)}"
    following = f"{base} --out predictions.csv" if out is None else f"shoal model export {shell_word(path)} --to onnx --out model.onnx"
    if out is not None:
        write_new(out, predicted_csv(model, labels, chances).encode())
    told = predicted_data(model, labels, chances, strange) | {"file": str(path), "data": data, "out": None if out is None else str(out)}
    emit(told, predicted(model, labels, chances, strange, source=data, out=out), json=json, next_command=following)


@app.command
def export(path: Path, /, *, to: Literal["json", "onnx"], out: Path, json: bool = False) -> None:
    """Write a model for other programs: JSON under a published schema, or ONNX with the encoding of columns inside.

    Parameters
    ----------
    path
        The model.
    to
        json, or onnx.
    out
        A new file.
    json
        Print one JSON object.
    """
    model = load_model(path)
    check_new(out)
    write = export_json if to == "json" else export_onnx
    write(model, out)
    data = {"file": str(path), "to": to, "out": str(out), "bytes": out.stat().st_size, "kind": model.kind, "simulated": model.is_simulated}
    following = (
        f"shoal model show {shell_word(out)}"
        if to == "json"
        else f"shoal model predict {shell_word(path)} --data {_ROWS} --out predictions.csv"
    )
    emit(data, exported(model, to, out), json=json, next_command=following)
