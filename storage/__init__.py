"""Everything that survives a restart: bytes, offsets, files. Knows nothing of the network, users or the JSON API."""
