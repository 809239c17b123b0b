"""PFDS: organisations share private predictors and private labelled data, and learn from all of them."""
