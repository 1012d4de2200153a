"""Tables in the layer `ops`, where the pipeline records its own operation."""
