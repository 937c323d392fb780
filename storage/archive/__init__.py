"""The archive: copies of segments in a bucket or a folder, from which a data folder can be restored (FORMAT.md,
section 10).

The threads of the archiver do all of it; the event loop only starts their work and takes the results.
"""
