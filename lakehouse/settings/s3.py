"""Settings for the connection to a lake on S3."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, SecretStr

from lakehouse.settings.s3_access import S3Access
from lakehouse.settings.web import of_api


class S3Settings(BaseModel):
    """The S3 settings; the property `s3` returns them as one value."""

    s3_endpoint: Annotated[str, AfterValidator(of_api)] = Field(
        default="",
        pattern=r"^(https?://[^/?#]+/?)?$",
        description="URL of the S3 store for a lake on s3a://. Default: AWS_ENDPOINT_URL, else AWS itself.",
    )
    s3_region: str = Field(
        default="", description="Region of the S3 store. Default: AWS_REGION; us-east-1 with an endpoint."
    )
    s3_access_key: str = Field(
        default="", description="The S3 access key ID. Default: AWS's own variables, files and roles."
    )
    s3_secret_key: SecretStr = Field(default=SecretStr(""), description="The S3 secret access key.")
    s3_session_token: SecretStr = Field(
        default=SecretStr(""), description="Session token of temporary S3 credentials."
    )

    @property
    def s3(self) -> S3Access:
        """The connection to the store."""
        return S3Access(
            self.s3_endpoint,
            self.s3_region,
            self.s3_access_key,
            self.s3_secret_key,
            self.s3_session_token,
        )
