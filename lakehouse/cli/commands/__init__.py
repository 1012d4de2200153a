"""The subcommands of `lakehouse`, one module each."""
