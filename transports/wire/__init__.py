"""The binary protocols as pure functions over bytes: no sockets, no event loop, no clock. All transports use them."""
