"""What a laptop has instead of a cluster: services of its own, sample events, the demo."""
