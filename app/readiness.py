"""The stages of the server from start to stop, and problems that do not prevent serving.

/health/ready reports them, even before anything else is served. app/server.py sets the stage; the HTTP listener reads
it.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable

from whippet.app.certificate_expiry import CertificateExpiry
from whippet.storage.opening_progress import Progress


class Stage(enum.Enum):
    RECOVERING = "recovering"
    """The store is being opened: partition after partition is read and checked."""
    STARTING = "starting"
    """The store is open, the listeners are being started."""
    READY = "ready"
    STOPPING = "stopping"


class Readiness:
    def __init__(self, stage: Stage = Stage.RECOVERING) -> None:
        self.stage = stage
        self.recovery: Progress | None = None
        """None until the number of partitions is known."""
        self.awaited: str | None = None
        """What else has to be there first; None if nothing is missing."""
        self.certificates = CertificateExpiry()
        self.archive_problem: Callable[[], str | None] = lambda: None
        """Set by the gateway when the data is archived."""
        self.engine_problem: Callable[[], str | None] = lambda: None
        """Set by app/server.py once the engine is open."""
        self.audit_problem: Callable[[], str | None] = lambda: None
        """Set by the gateway when it keeps an audit log."""
        self.on_stage: Callable[[Stage], None] = lambda _: None
        """Called with each stage that is entered."""
        self._started_at = time.monotonic()
        self._start_seconds: float | None = None

    def problems(self) -> list[str]:
        """What does not prevent serving. Anybody may read it, so it contains no names of buckets or folders."""
        found = self.engine_problem(), self.archive_problem(), self.audit_problem()
        return self.certificates.problems() + [problem for problem in found if problem is not None]

    @property
    def is_ready(self) -> bool:
        return self.stage is Stage.READY

    @property
    def seconds(self) -> float:
        """How long the start took, or has taken so far."""
        return time.monotonic() - self._started_at if self._start_seconds is None else self._start_seconds

    def enter(self, stage: Stage) -> None:
        self.stage = stage
        if stage is Stage.READY:
            self._start_seconds = time.monotonic() - self._started_at
        self.on_stage(stage)

    def sentence(self) -> str:
        match self.stage:
            case Stage.RECOVERING if self.recovery is not None:
                return f"recovering: {self.recovery}"
            case Stage.RECOVERING if self.awaited is not None:
                return f"recovering: waiting for {self.awaited}"
            case Stage.RECOVERING:
                return "recovering: the catalogue is being read"
            case Stage.STARTING:
                return "starting: the store is open"
            case Stage.STOPPING:
                return "stopping"
        return "ready"
