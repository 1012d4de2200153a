"""Code shared by all packages: errors, events, printable text, local state files."""
