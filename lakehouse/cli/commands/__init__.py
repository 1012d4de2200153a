"""The subcommands of `lakehouse`, with one module for each."""
