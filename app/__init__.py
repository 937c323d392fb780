"""The server's behaviour, independent of the transport that a request came over."""
