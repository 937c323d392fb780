"""Decides what may be received on every transport: which requests, how much at a time, and for how long.

The parts know nothing of sockets or tasks. A transport gives them bytes and the time, and does what they decide: read,
stop reading, execute a request, close a connection.

    budget.py          how much memory each user may hold, and who is next when there is not enough
    budgets.py         the budgets of a server, and whose account a client's requests are counted in
    frame_intake.py    requests of the binary protocols, from a byte stream or from a stream of their own
    text_intake.py     text messages, joined from fragments
    stall_detector.py  whether a client takes what it is sent
"""
