"""A broker and a Redis for a machine that has none, and the runtime jars."""
