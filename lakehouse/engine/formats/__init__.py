"""Records in formats other than JSON: Avro, JSON Schema and Protobuf, with schemas from a registry."""
