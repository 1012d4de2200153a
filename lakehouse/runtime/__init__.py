"""An application that runs layers: queries beside each other, failures, signals, guards."""
