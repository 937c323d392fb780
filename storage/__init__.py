"""What survives a restart: bytes, offsets, files. Knows no network, no user and no JSON API."""
