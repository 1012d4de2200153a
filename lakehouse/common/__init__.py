"""Code shared by all packages: errors, events, printable text and local state files."""
