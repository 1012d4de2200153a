"""Spark itself: sessions, its JVM, files by Hadoop paths, and its error messages."""
