"""The streams that come with this project, and are examples for others."""
