"""Secure aggregation (Bonawitz et al. 2017) with fresh keys in every round."""
