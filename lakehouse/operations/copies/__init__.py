"""Create or update a copy of a whole lake while streams run, and adopt the copy to replace the original."""
