"""Whole populations on one machine behind scikit-learn's fit and predict: simulations, one class for each protocol."""

from shoal.errors import UsageError

try:
    import sklearn  # noqa: F401
except ImportError:
    raise UsageError("USAGE-002", "The estimators need scikit-learn, which is not installed.", fix="pip install 'shoal[learn]'") from None
