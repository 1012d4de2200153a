"""How far queries have come: their checkpoints, and the versions of tables that these speak of."""
