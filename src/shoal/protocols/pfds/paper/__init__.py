"""Variant `paper`: shared trees and synthetic labelled data."""
