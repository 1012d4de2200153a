"""Who may call, how often, and over which connections."""
