"""Spark itself: sessions, its JVM, files by Hadoop's names, and what it says when it fails."""
