"""The layers bronze, silver, gold and export, as steps in a loop."""
