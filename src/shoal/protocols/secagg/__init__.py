"""Secure sums as a sub-protocol: the collector learns the sum of private vectors only."""
