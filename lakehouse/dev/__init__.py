"""Tools for local development and for stream authors: services, samples, the demo and the scaffold."""
