"""Whippet, a persistent message-streaming gateway compatible with Apache Iggy.

Two modules are for other programs: `whippet.client`, an async client, and `whippet.spark`, the data source of Spark.
Everything else (`whippet.app`, `whippet.storage`, `whippet.transports`, `whippet.pipelines`, `whippet.bench`) is the
server's own and may change with any release.
"""

import pkgutil

# A zip for Spark holds a part of this package, and may come before an installation that holds all of it.
__path__ = pkgutil.extend_path(__path__, __name__)
__all__: list[str] = []
