"""Run joint computations with MPyC in child processes."""
