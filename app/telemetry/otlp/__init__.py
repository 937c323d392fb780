"""Export of traces, metrics and logs over OTLP, the protocol of OpenTelemetry, for `telemetry.enabled`.

`exporter.py` collects on the event loop and sends on a thread; `messages.py` encodes with the official definitions, and
is imported, like `grpc_sender.py`, only if something is exported: both need the extra `telemetry`.
"""
