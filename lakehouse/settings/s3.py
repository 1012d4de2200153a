"""The settings by which a lake on S3 is reached."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, SecretStr

from lakehouse.settings.s3_access import S3Access
from lakehouse.settings.web import of_api


class S3Settings(BaseModel):
    """One group: `s3` is its value."""

    s3_endpoint: Annotated[str, AfterValidator(of_api)] = Field(
        default="",
        pattern=r"^(https?://[^/?#]+/?)?$",
        description="URL of the S3 store for a lake on s3a://. Default: AWS_ENDPOINT_URL, else AWS itself.",
    )
    s3_region: str = Field(
        default="", description="Region of the S3 store. Default: AWS_REGION; us-east-1 with an endpoint."
    )
    s3_access_key: str = Field(
        default="", description="Id of the S3 access key. Default: AWS's own variables, files and roles."
    )
    s3_secret_key: SecretStr = Field(default=SecretStr(""), description="The S3 secret key.")
    s3_session_token: SecretStr = Field(
        default=SecretStr(""), description="Session token of a temporary S3 key."
    )

    @property
    def s3(self) -> S3Access:
        """How the store is reached."""
        return S3Access(
            self.s3_endpoint,
            self.s3_region,
            self.s3_access_key,
            self.s3_secret_key,
            self.s3_session_token,
        )
