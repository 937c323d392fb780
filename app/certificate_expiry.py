"""Records when the listeners' certificates expire, for the log, for /health/ready and for the metrics.

The listeners record it whenever they read a certificate.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

DAY_SECONDS = 24 * 3600
SOON_DAYS = 14


class CertificateExpiry:
    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._ends_at: dict[str, float] = {}

    def record(self, section: str, ends_at: float) -> None:
        """`section` is the section of the configuration; `ends_at` is in seconds since 1970."""
        self._ends_at[section] = ends_at
        if (problem := self._problem(section)) is not None:
            _log.log(logging.ERROR if self.days_left()[section] <= 0 else logging.WARNING, "%s", problem)

    def days_left(self) -> dict[str, float]:
        """Negative for certificates that have expired."""
        now = self._clock()
        return {section: (ends_at - now) / DAY_SECONDS for section, ends_at in self._ends_at.items()}

    def problems(self) -> list[str]:
        return [problem for section in self._ends_at if (problem := self._problem(section)) is not None]

    def _problem(self, section: str) -> str | None:
        days = self.days_left()[section]
        if days > SOON_DAYS:
            return None
        date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self._ends_at[section]))
        if days > 0:
            return f"{section}: the certificate expires on {date}"
        return f"{section}: the certificate expired on {date}; clients that check it refuse to connect"
