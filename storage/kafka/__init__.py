"""The engine that keeps messages in a cluster that speaks Kafka's protocol; docs/engines/kafka.md has the mapping.

engine.py is the way in. cluster.py sends requests to brokers, and is the only module that knows connections; names.py,
headers.py and records.py are the mapping, as pure functions; producing.py and watching.py are what a partition does at
its leader; offsets.py what a group does at its coordinator; catalogue.py keeps the documents.

The package is loaded only if the configuration names this engine: aiokafka is an extra.
"""
