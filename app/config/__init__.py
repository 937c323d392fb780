"""The configuration: `server.toml` and IGGY_ variables, read once, validated, as one frozen value.

The composition root and the command line call `load`; other modules receive the part that they need. The meaning of
each key is documented where it is defined, in `schema`, `listeners` and `system`.
"""

from whippet.app.config.error import ConfigError
from whippet.app.config.load import Loaded, load
from whippet.app.config.schema import Config

__all__ = ["Config", "ConfigError", "Loaded", "load"]
