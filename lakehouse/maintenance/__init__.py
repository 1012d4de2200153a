"""Maintenance: keeps tables small; no row that anybody reads changes."""
