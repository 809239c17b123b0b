"""DDML's online model server."""
