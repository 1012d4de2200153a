"""Read gold rows, dead letters, checks and events without a JVM."""
