"""A graph of ONNX in the making: names that nobody else has, constants, operations, and the model at the end.

Operations are those of opset 15 and of version 2 of ``ai.onnx.ml``, which every runtime of the last years has; all arithmetic is in
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
"""The name of the one dimension that is not fixed."""


class Graph:
    """A graph that is built from its inputs on.

    Parameters
    ----------
    names
        Names of its inputs, which nothing else in it may have.

    Examples
    --------
    >>> graph = Graph(["x"])
    >>> doubled = graph.op("Mul", graph.numbers("x", "any number"), graph.constant(2.0))
    >>> graph.output("y", doubled, TensorProto.DOUBLE, (1,))
    'y'
    >>> [node.op_type for node in graph.proto("twice", {}).graph.node]
    ['Mul', 'Identity']
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._taken = set(names)
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self._constants: list[TensorProto] = []
        self._nodes: list[NodeProto] = []

    def numbers(self, name: str, words: str) -> str:
        """An input with a number for each row, ``(rows, 1)``."""
        return self._input(name, TensorProto.DOUBLE, words)

    def texts(self, name: str, words: str) -> str:
        """An input with a text for each row, ``(rows, 1)``."""
        return self._input(name, TensorProto.STRING, words)

    def _input(self, name: str, element: int, words: str) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, element, [_ROWS, 1], words))
        return name

    def constant(self, value: npt.ArrayLike) -> str:
        """Numbers (doubles, or int64 where all are whole and given so) or texts, that are in the file."""
        array = np.asarray(value)
        self._constants.append(numpy_helper.from_array(array.astype(object) if array.dtype.kind == "U" else array, self._fresh("c")))
        return self._constants[-1].name

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """What an operation makes of its inputs."""
        made = self._fresh(kind.lower())
        self._nodes.append(helper.make_node(kind, inputs, [made], domain=domain, **attributes))
        return made

    def add_up(self, terms: Sequence[str]) -> str:
        """The sum of some terms, from the first to the last: rounding is then that of a loop."""
        total, *more = terms
        for term in more:
            total = self.op("Add", total, term)
        return total

    def output(self, name: str, made: str, element: int, shape: tuple[int, ...]) -> str:
        """Give out something that was made, with a column for each number of the shape after the rows; the name that it got."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        self._nodes.append(helper.make_node("Identity", [made], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, element, [_ROWS, *shape]))
        return name

    def proto(self, name: str, properties: Mapping[str, str]) -> ModelProto:
        """The whole model, with properties that programs can read."""
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, self._constants)
        opsets = [helper.make_opsetid(domain, number) for domain, number in OPSETS.items()]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="shoal", producer_version=version("shoal")
        )
        helper.set_model_props(model, dict(properties))
        return model

    def _fresh(self, hint: str) -> str:
        name = f"{hint}.{len(self._constants) + len(self._nodes)}"
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name
