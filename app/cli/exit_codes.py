"""The exit codes of `whippet`. Commands that check or repair a data folder have their own meanings for 1 and 2, which
their help describes."""

from __future__ import annotations

DONE = 0
FAILED = 1
USAGE = 2
"""Something is wrong with the command line or with a file that it names; nothing was changed."""
NOT_FOUND = 3
REFUSED = 4
"""The server refused the login or has no permission for this."""
UNREACHABLE = 5
INTERRUPTED = 130
"""As shells report a program that Ctrl-C ended."""
PIPE_CLOSED = 141
"""As shells report a program whose output nobody reads any more."""
