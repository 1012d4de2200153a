"""The `s3` section: the connection to a lake on S3."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from lakehouse.settings.fields import Section
from lakehouse.settings.s3_access import S3Access
from lakehouse.settings.web import of_api


class S3Settings(Section):
    """The S3 settings. `access` combines the connection settings into one value."""

    endpoint: Annotated[str, AfterValidator(of_api)] = Field(
        default="",
        pattern=r"^(https?://[^/?#]+/?)?$",
        description=(
            "URL of the S3 store for a lake on s3a://. Default: AWS_ENDPOINT_URL if set, else AWS itself."
        ),
    )
    region: str = Field(
        default="", description="Region of the S3 store. Default: AWS_REGION; with an endpoint, us-east-1."
    )
    access_key: str = Field(
        default="", description="The S3 access key ID. Default: AWS's own variables, files and roles."
    )
    secret_key: SecretStr = Field(default=SecretStr(""), description="The S3 secret access key.")
    session_token: SecretStr = Field(
        default=SecretStr(""), description="Session token for temporary S3 credentials."
    )
    single_writer: bool = Field(
        default=False,
        description=(
            "Allow an S3 store without conditional writes. A lock in the lake then ensures that only one "
            "application writes."
        ),
    )

    @property
    def access(self) -> S3Access:
        """The connection to the store."""
        return S3Access(self.endpoint, self.region, self.access_key, self.secret_key, self.session_token)
