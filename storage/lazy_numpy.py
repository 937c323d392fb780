"""numpy, imported when it is first used: `from whippet.storage.lazy_numpy import np`.

Importing it takes longer than most commands of the client, and few of them need it. After the first use an access costs
what one to a module costs. What is made with numpy must not be made when a module is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["np"]


class _Loaded:
    """Has everything that numpy has."""


class _Unloaded(_Loaded):
    def __getattr__(self, name: str) -> Any:
        import numpy  # noqa: PLC0415 -- the purpose of this module

        # In this order: another thread may be on its way to the same.
        self.__dict__.update(numpy.__dict__)
        self.__class__ = _Loaded  # type: ignore[assignment]
        return getattr(self, name)


if TYPE_CHECKING:
    import numpy as np
else:
    np = _Unloaded()
