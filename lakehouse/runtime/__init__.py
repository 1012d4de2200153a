"""An application that runs layers: a loop per stream, their turns, failures and signals."""
