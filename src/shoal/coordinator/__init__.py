"""The HTTP service that hosts aggregators."""
