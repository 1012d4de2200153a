"""Spark itself: its sessions, its JVM, files at Hadoop paths, and its error messages."""
