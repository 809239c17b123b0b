"""Secure sums: members of a roster add up private vectors through a coordinator that learns the sum and nothing else."""
