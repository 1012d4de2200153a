"""The layers: bronze, silver, gold and export, each as a query of its own and as a step of trips."""
