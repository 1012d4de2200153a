"""Tables of the layer `ops`: the pipeline's records about its own operation."""
