"""How far queries have come: their checkpoints, and the table versions that these refer to."""
