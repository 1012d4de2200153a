"""Records in formats other than JSON: Avro, JSON Schema and Protobuf, with schemas of a registry."""
