"""PFDS: organisations share private tables, models and datasets."""
