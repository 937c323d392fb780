"""The protocol of clients 0.6 to 0.8.

frames      the eight bytes before every request and every response, and how long they may be
primitives  numbers, names, identifiers and the other small parts that requests and responses are made of
requests    payload -> command, and back for our own client
answers     answer -> payload, and back for our own client
messages    the classic form of messages <-> the batch of storage
userheaders the two layouts of the user headers inside messages
dialect     which of the two sizes of message headers a connection speaks
"""
