"""Learned models: read from files, described, used for predictions, and exported.

A model is numbers and texts under a public schema. No function here executes anything from a file.
"""

from shoal.models.export import export_json, export_onnx, to_onnx
from shoal.models.model import Model
from shoal.models.reader import load_model, read_model

__all__ = ["Model", "export_json", "export_onnx", "load_model", "read_model", "to_onnx"]
