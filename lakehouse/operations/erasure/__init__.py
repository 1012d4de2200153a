"""Find every place that still has a person's data: in the lake, in its stores and in its topics."""
