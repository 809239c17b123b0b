"""SDQ: counts of several databases through secure sums that carry their own noise."""
