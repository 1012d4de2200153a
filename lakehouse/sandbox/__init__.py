"""What a laptop needs instead of a cluster: services of its own, sample events, the demo."""
