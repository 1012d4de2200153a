"""For a laptop and for authors of streams: local services, samples, demo and scaffold."""
