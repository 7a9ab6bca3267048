"""Reads and runs the pages of the documentation."""
