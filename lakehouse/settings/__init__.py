"""Settings from environment variables (`LAKEHOUSE_…`), an optional `lakehouse.toml`, and defaults.

Environment variables override the file. `load_settings` reads the settings once, validates and freezes them,
and refuses unknown keys. The broker and Redis default to the services that `lakehouse services up` runs under
`home` or, if these are not running, to the standard local ports.
"""

from lakehouse.settings.alerts import SECRET_PREFIX
from lakehouse.settings.keys import ENV_PREFIX
from lakehouse.settings.model import Settings
from lakehouse.settings.reading import load_settings, services_file

__all__ = ["ENV_PREFIX", "SECRET_PREFIX", "Settings", "load_settings", "services_file"]
