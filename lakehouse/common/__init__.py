"""What every package may use: errors, events, printable text, small files of this machine."""
