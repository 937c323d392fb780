"""The protocol of clients 0.6 to 0.8.

frames       the eight bytes before every request and every response, and how long these may be
requests     payload -> command, and back for our own client
responses    response -> payload, and back for our own client
sends polls  the two payloads that carry messages
message      one message as classic clients have it
batching     messages -> batches of the store
unbatching   batches of the store -> messages
userheaders  the two layouts of the user headers inside messages
dialect      which of the two sizes of message headers a connection uses
"""
