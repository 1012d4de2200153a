"""Gold rows, dead letters, checks and events, read without a JVM."""
