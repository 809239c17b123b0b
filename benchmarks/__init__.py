"""Speed, memory and the papers' figures, each as a ratio to a peer or to a limit measured in the same run."""
