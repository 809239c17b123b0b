"""The service that hosts an aggregator: where its state is kept, and what it does with a request."""
