"""What the server does, independent of the transport that a request came over."""
