"""Tables of the layer `ops`: what the pipeline records about its own operation."""
