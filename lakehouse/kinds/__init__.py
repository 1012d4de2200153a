"""Kinds of streams, each made by a function of field names."""
