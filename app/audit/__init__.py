"""The audit log: who has logged in or failed to, and who has changed what.

`app/commands/audited.py` makes an entry of each command that is recorded, so no transport can leave it out. `trail.py`
takes the entries; `audit_file.py` writes them on a thread of its own, and `audit_topic.py` keeps them as messages of
this server. Only names and settings become part of an entry, never passwords or tokens.
"""
