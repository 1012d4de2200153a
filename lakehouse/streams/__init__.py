"""Declare a stream: kinds, contracts, messages, suites, and the four built-in streams."""
