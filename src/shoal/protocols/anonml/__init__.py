"""AnonML: many people, one row each; randomised answers, and an ensemble learned from the noisy tables."""
