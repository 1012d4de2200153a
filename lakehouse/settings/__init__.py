"""Settings: environment variables (`LAKEHOUSE_…`) over an optional `lakehouse.toml` over defaults.

`load_settings` reads them once, validated and frozen. Unknown keys are refused by name in both places. If
neither names a broker or a Redis, the services that `lakehouse services up` runs under `home` are used, and
after those the standard local ports.
"""

from lakehouse.settings.reading import load_settings, services_file
from lakehouse.settings.values import ENV_PREFIX, Settings
from lakehouse.settings.web import SECRET_PREFIX

__all__ = ["ENV_PREFIX", "SECRET_PREFIX", "Settings", "load_settings", "services_file"]
