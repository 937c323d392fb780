"""The configuration: `server.toml` and IGGY_ variables, read once and checked, as one frozen value.

The composition root and the command line call `load`; everybody else is handed the part that concerns it. What a key
means is written where it is defined, in `schema`, `listeners` and `system`.
"""

from whippet.app.config.error import ConfigError
from whippet.app.config.load import Loaded, load
from whippet.app.config.schema import Config

__all__ = ["Config", "ConfigError", "Loaded", "load"]
