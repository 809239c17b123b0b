"""Empirical lower bounds on epsilon: what a mechanism is seen to leak, held against what it claims."""
