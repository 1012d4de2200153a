"""An application that runs layers: concurrent queries, failures, signals, guards."""
