"""Requests in, whatever carries them: what is taken, in what order, how much of it at a time, and for how long.

The parts know neither sockets nor tasks. A transport hands them bytes and the time, and does what they say: read, stop
reading, carry out a request, end a connection.

    room.py       how much memory each user may hold, and who is next when there is not enough: one policy for all
    shared.py     the rooms of a server, and whose account a client's requests are on
    frames.py     requests of the binary protocols, cut out of a stream of bytes, or one on a stream of its own
    messages.py   messages of text, gathered from fragments
    stalling.py   whether a client takes what it is sent
"""
