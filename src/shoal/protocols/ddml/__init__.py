"""Draw and Discard: devices improve one of k instances of a model whenever they like, with noise."""
