"""Simulations of whole populations with scikit-learn's fit and predict."""

from shoal.errors import require_extra

require_extra("learn", "sklearn", purpose="An estimator")
