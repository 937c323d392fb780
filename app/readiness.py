"""How far the server has come on its way up: what /health/ready says, also while nothing else can be answered yet; and
what is wrong with a server that serves all the same.

The composition root moves it on; the HTTP listener reads it.
"""

from __future__ import annotations

import enum
import time

from whippet.app.certificate_expiry import CertificateExpiry
from whippet.storage.store import Progress


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
        """None until it is known how many partitions there are."""
        self.certificates = CertificateExpiry()
        self._began = time.monotonic()
        self._took: float | None = None

    @property
    def is_ready(self) -> bool:
        return self.stage is Stage.READY

    @property
    def seconds(self) -> float:
        """How long it took to get ready, or has taken until now."""
        return time.monotonic() - self._began if self._took is None else self._took

    def enter(self, stage: Stage) -> None:
        self.stage = stage
        if stage is Stage.READY:
            self._took = time.monotonic() - self._began

    def sentence(self) -> str:
        match self.stage:
            case Stage.RECOVERING if self.recovery is not None:
                return f"recovering: {self.recovery}"
            case Stage.RECOVERING:
                return "recovering: the catalogue is being read"
            case Stage.STARTING:
                return "starting: the store is open"
            case Stage.STOPPING:
                return "stopping"
        return "ready"
