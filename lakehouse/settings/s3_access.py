"""Access to an S3 store, for the two kinds of clients that lakehouse uses to read a lake.

Hadoop's client in the JVM is configured by properties. deltalake and pyarrow, like other S3 tools, read AWS's
environment variables. Values that are not set come from AWS's provider chain: variables, a credentials file,
a web identity, or the machine's role.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import SecretStr

from lakehouse.common.errors import SettingsError

_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_NOTHING = SecretStr("")
_ANY_REGION = "us-east-1"  # used for stores without regions, because every signature needs a region


@dataclass(frozen=True)
class S3Access:
    """The address and region of an S3 store, and the key that signs requests. Unset values are empty.

    The secret key can come from a file, which every new client reads again.
    """

    endpoint: str = ""
    region: str = ""
    access_key: str = ""
    secret_key: SecretStr = _NOTHING
    session_token: SecretStr = _NOTHING

    def check(self) -> None:
        """Raise SettingsError if only one of the access key and the secret key is set."""
        if bool(self.access_key) != bool(self.secret_key.get_secret_value()):
            raise SettingsError(
                "only one of s3.access_key and s3.secret_key is set: set both (the secret key in "
                "LAKEHOUSE_S3_SECRET_KEY or a file), or neither, to use AWS's own variables, files and roles"
            )

    def for_hadoop(self) -> dict[str, str]:
        """Return the properties for Hadoop's S3 client, s3a, and for Spark's checkpoint files.

        They include the secret key.
        """
        return _given(
            {
                _FILES: "lakehouse.storage.ObjectFileManager",
                "fs.s3a.endpoint": self.endpoint,
                "fs.s3a.endpoint.region": self._region,
                # Self-hosted stores rarely have a host name for each bucket.
                "fs.s3a.path.style.access": "true" if self.endpoint else "",
                "fs.s3a.access.key": self.access_key,
                "fs.s3a.secret.key": self.secret_key.get_secret_value(),
                "fs.s3a.session.token": self.session_token.get_secret_value(),
                "fs.s3a.aws.credentials.provider": self._provider,
            }
        )

    def for_environment(self) -> dict[str, str]:
        """Return the environment variables for deltalake and pyarrow, including the secret key."""
        return _given(
            {
                "AWS_ENDPOINT_URL": self.endpoint,
                "AWS_ALLOW_HTTP": "true" if self.endpoint.startswith("http:") else "",
                "AWS_REGION": self._region,
                "AWS_ACCESS_KEY_ID": self.access_key,
                "AWS_SECRET_ACCESS_KEY": self.secret_key.get_secret_value(),
                "AWS_SESSION_TOKEN": self.session_token.get_secret_value(),
                # Without this, the readers spend seconds looking for the machine's role.
                "AWS_EC2_METADATA_DISABLED": "true" if self.access_key else "",
            }
        )

    @property
    def _region(self) -> str:
        return self.region or (_ANY_REGION if self.endpoint else "")

    @property
    def _provider(self) -> str:
        if not self.access_key:
            return ""
        kind = "Temporary" if self.session_token.get_secret_value() else "Simple"
        return f"org.apache.hadoop.fs.s3a.{kind}AWSCredentialsProvider"


def _given(values: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}
