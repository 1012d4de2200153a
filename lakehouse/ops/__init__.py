"""Tables of the layer `ops`: what the pipeline notes about itself beside the data."""
