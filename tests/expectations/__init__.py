import os

os.environ["GX_ANALYTICS_ENABLED"] = "false"  # before Great Expectations is imported: it reports its use
