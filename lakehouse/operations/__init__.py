"""Run, monitor, check, repair, maintain and copy a lake."""
