"""`lakehouse demo`: the main job on local services, checked."""
