"""Pipelines as files: source -> transforms -> sinks on Spark, for `whippet pipeline run` and `check`.

1. `pipeline_file` makes a frozen value of the TOML. Every table of it is a dataclass whose fields are keys (`keys`);
   from them come errors and docs/pipelines.md.
2. `flow` finds out what the transforms amount to, `running` starts one streaming query for a pipeline, and `processing`
   is called with each batch of it: bad records aside, transforms, sinks, dead letters.
3. A batch comes again after a crash. Each sink recognises it in a way of its own, by the number of the batch and the id
   of the query, which are in the checkpoint.
4. Like the package above, nothing here imports the rest of Whippet: it goes to a cluster in the same zip. What a sink
   needs besides is imported when that sink is used.
"""
