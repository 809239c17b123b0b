"""Models that were learned, out of their files: read strictly, described, asked for predictions, and written for other programs.

Nothing in a model's file can run, and nothing here runs what it reads: a model is numbers and texts under a public schema.
"""

from shoal.models.exporting import export_json, export_onnx, to_onnx
from shoal.models.model import Model
from shoal.models.reading import load_model, read_model

__all__ = ["Model", "export_json", "export_onnx", "load_model", "read_model", "to_onnx"]
