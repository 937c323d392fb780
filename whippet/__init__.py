"""Whippet, a persistent message-streaming gateway compatible with Apache Iggy.

Other programs may import two modules: `whippet.client`, an async client, and `whippet.spark`, the data source of Spark.
Everything else (`whippet.app`, `whippet.storage`, `whippet.transports`, `whippet.pipelines`, `whippet.bench`) belongs
to the server and may change with any release.
"""

import pkgutil

# The zip for Spark contains a part of this package, and may precede a complete installation on the path.
__path__ = pkgutil.extend_path(__path__, __name__)
__all__: list[str] = []
