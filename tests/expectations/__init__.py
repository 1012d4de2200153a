import os

os.environ["GX_ANALYTICS_ENABLED"] = "false"  # before the import of Great Expectations, which reports usage
