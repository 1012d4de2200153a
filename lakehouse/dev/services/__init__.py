"""Local replacements for a cluster: services, sample events and the demo."""
