"""The binary protocols as pure functions over bytes: no socket, no event loop, no clock. All transports drive it."""
