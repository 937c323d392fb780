"""Imports the data folder of an Apache Iggy server into a data folder of Whippet; `importer.run` is the way in.

    source.py            the folder as Iggy left it: its version, its files, its stored offsets
    state_log.py         Iggy 0.7 and 0.8: the catalogue as a log of commands
    journal.py           Iggy 0.9: the same as consensus entries, on top of a snapshot (snapshot.py)
    catalogue.py         what those commands add up to: streams, topics, groups, users, tokens
    wire.py, cipher.py   encodings and encryption that both share
    classic_segments.py  messages of 0.7 and 0.8
    modern_segments.py   batches of 0.9, which have Whippet's own format
    plan.py              which number and name everything gets in the target, and what is in the way
    partition_writer.py  writes the log of one partition
    importer.py          the order of it all
    report.py            what was imported, and what was not

Everything is built in the target's staging folder and then put into place at once (storage/placement.py), so an import
that is interrupted leaves nothing. The source is only read.
"""
