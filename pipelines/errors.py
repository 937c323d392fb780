"""The errors of pipelines, besides those of the data source.

    PipelineError
    ├── FileError        the pipeline file is invalid, or does not fit what it names
    ├── MissingError     this machine lacks something: Java, a package
    ├── BadRecordError   a record is unusable, and the file does not say where such records go
    ├── SourceError      a source cannot be reached, or has changed
    ├── SinkError        a sink cannot be reached, or refuses more than single records
    └── SparkError       Spark failed

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
