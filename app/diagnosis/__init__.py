"""The checks of `whippet doctor`: each looks at one thing that a server depends on, and returns findings.

They only read: what is measured on the disk has no name there, and a port that is tried is never listened on. They work
whether or not a server runs on the data folder.
"""
