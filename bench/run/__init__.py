"""`whippet bench run` and `whippet bench compare`: load on any running server, its result as a file and a page, and a
verdict on two results.

`kinds.py` is the table of kinds and `settings.py` what was asked for. `conductor.py` prepares the server and starts the
processes that run `worker.py`; each has some of the actors of `actors.py`. `result.py` is what comes out.
"""
