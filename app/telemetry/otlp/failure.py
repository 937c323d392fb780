"""Why the collector did not take something."""

from __future__ import annotations


class SendFailed(Exception):
    def __init__(self, reason: str, *, is_repeatable: bool) -> None:
        super().__init__(reason)
        self.is_repeatable = is_repeatable
        """False: the collector would refuse the same content again."""
