"""ONNX graph builder.

It chooses unique names and collects constants and operators. Operators are those of opset 15 and of
version 2 of ``ai.onnx.ml``, which all runtimes of the last years support. All arithmetic is in
doubles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

OPSETS = {"": 15, "ai.onnx.ml": 2}
IR_VERSION = 8

_ROWS = "rows"
"""Name of the only dimension that is not fixed."""


class OnnxGraph:
    """A graph under construction, from its inputs to its outputs.

    Parameters
    ----------
    names
        Names of the inputs, which no other value may have.

    Examples
    --------
    >>> graph = OnnxGraph(["x"])
    >>> x = graph.add_number_input("x", "any number")
    >>> doubled = graph.add_op("Mul", x, graph.add_constant(2.0))
    >>> graph.add_output("y", doubled, TensorProto.DOUBLE, (1,))
    'y'
    >>> [node.op_type for node in graph.build_model("twice", {}).graph.node]
    ['Mul', 'Identity']
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._taken = set(names)
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self._constants: list[TensorProto] = []
        self._nodes: list[NodeProto] = []

    def add_number_input(self, name: str, description: str) -> str:
        """Add an input with a number for each row, ``(rows, 1)``."""
        return self._add_input(name, TensorProto.DOUBLE, description)

    def add_text_input(self, name: str, description: str) -> str:
        """Add an input with a text for each row, ``(rows, 1)``."""
        return self._add_input(name, TensorProto.STRING, description)

    def _add_input(self, name: str, element: int, description: str) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, element, [_ROWS, 1], description))
        return name

    def add_constant(self, value: npt.ArrayLike) -> str:
        """Add a constant of doubles, int64 or texts; return its name."""
        array = np.asarray(value)
        self._constants.append(
            numpy_helper.from_array(
                array.astype(object) if array.dtype.kind == "U" else array, self._make_name("c")
            )
        )
        return self._constants[-1].name

    def add_op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add an operator; return the name of its output."""
        output = self._make_name(kind.lower())
        self._nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def add_sum(self, terms: Sequence[str]) -> str:
        """Add the terms from first to last, which rounds like a loop; return the sum's name."""
        total, *rest = terms
        for term in rest:
            total = self.add_op("Add", total, term)
        return total

    def add_output(self, name: str, value: str, element: int, shape: tuple[int, ...]) -> str:
        """Make a value an output with dimensions ``(rows, *shape)``; return its name."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, element, [_ROWS, *shape]))
        return name

    def build_model(self, name: str, properties: Mapping[str, str]) -> ModelProto:
        """Return the complete model with properties that programs can read."""
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, self._constants)
        opsets = [helper.make_opsetid(domain, number) for domain, number in OPSETS.items()]
        model = helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=IR_VERSION,
            producer_name="shoal",
            producer_version=version("shoal"),
        )
        helper.set_model_props(model, dict(properties))
        return model

    def _make_name(self, hint: str) -> str:
        name = f"{hint}.{len(self._constants) + len(self._nodes)}"
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name
