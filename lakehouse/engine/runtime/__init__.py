"""The application that runs layers: one loop per stream, standby runs, retries and signals."""
