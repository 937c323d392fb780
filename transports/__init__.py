"""Bytes on a socket <-> commands. Knows no file."""
