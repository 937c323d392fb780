"""What can go wrong with a pipeline, besides what can go wrong with the data source.

    PipelineError
    ├── FileError        the pipeline file asks for what cannot be
    ├── MissingError     this machine lacks something: Java, a package
    ├── BadRecordError   a record that cannot be used, and nobody said where such records go
    ├── SourceError      a source cannot be reached, or is not what it was
    ├── SinkError        a sink cannot be reached, or refuses what is no fault of a single record
    └── SparkError       Spark could not go on

The first two are found before anything is started.
"""

from __future__ import annotations

from pyspark_whippet.errors import PipelineError


class FileError(PipelineError):
    pass


class MissingError(PipelineError):
    pass


class BadRecordError(PipelineError):
    pass


class SourceError(PipelineError):
    pass


class SinkError(PipelineError):
    pass


class SparkError(PipelineError):
    pass
