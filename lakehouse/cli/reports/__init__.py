"""The printed output of the commands."""
