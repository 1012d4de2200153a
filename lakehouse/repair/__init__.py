"""What is done to tables afterwards: replays, rebuilds, and the care of files."""
