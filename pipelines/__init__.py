"""Pipelines as files: source -> transforms -> sinks on Spark, for `whippet pipeline run` and `check`.

1. `pipeline_file` decodes the TOML to one frozen value. Every table of the file is a dataclass whose fields are keys
   (`keys`); errors and docs/pipelines.md are derived from them.
2. `transform_chain` analyses the transforms, `runner` starts one streaming query per pipeline, and `batch_processor` is
   called with each of its batches: it sets bad records aside, applies transforms, and writes to sinks and dead letters.
3. After a crash a batch is replayed. Each sink recognises a replay in its own way, by the number of the batch and the
   id of the query, which are both in the checkpoint.
4. Like `pyspark_whippet`, this package imports nothing else of Whippet: it travels to a cluster in the same zip. The
   packages that a sink needs are imported when that sink is used.
"""
