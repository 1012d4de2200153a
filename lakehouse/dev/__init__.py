"""Tools for local development and stream authors: services, samples, the demo and the scaffold."""
