"""Joint computations by MPyC, each in a child process, over messages that shoal carries."""
