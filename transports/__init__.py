"""Turns bytes on sockets into commands and back. Nothing here accesses files."""
