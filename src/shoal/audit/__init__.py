"""Empirical lower bounds on epsilon, to compare with the guarantee that is claimed."""
