"""The layers: bronze, silver, gold and export, as steps of a loop."""
