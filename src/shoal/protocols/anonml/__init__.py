"""AnonML: many people, one row each, one randomised answer each.

The aggregator counts the answers and learns a classifier from the noisy tables.
"""
