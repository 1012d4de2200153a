"""Brokers of other Kafka versions than the local services', for any test: `pytest --kafka VERSION`.

Their jars come from Maven, through the Ivy in pyspark, and are kept in the user's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyspark

from lakehouse.common.errors import ServiceError
from lakehouse.dev.services import services
from lakehouse.dev.services.broker import KafkaServer
from lakehouse.storage.spark import java

VERSIONS = ("3.9.2", "4.4.0")
"""The versions with which tests were run, according to docs/services-and-stores.md."""

_MODULE = """\
<ivy-module version="2.0">
  <info organisation="lakehouse" module="broker-{version}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{version}" conf="default->default"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.25.3" conf="default->default"/>
    <dependency org="org.apache.logging.log4j" name="log4j-core" rev="2.25.3" conf="default->default"/>
  </dependencies>
</ivy-module>
"""


@dataclass(frozen=True)
class OtherBroker(KafkaServer):
    """The local broker with the jars of another version."""

    version: ClassVar[str]

    @property
    def jars(self) -> Path:
        """The directory of the version's jars."""
        cache = Path(os.environ.get("LAKEHOUSE_CACHE", "~/.cache/lakehouse")).expanduser()
        return cache / "brokers" / self.version

    def require(self) -> None:
        """Fetch the missing jars."""
        java.find()
        if not self.jars.is_dir():
            fetch(self.version, self.jars)


def fetch(version: str, target: Path) -> None:
    """Copy the jars of a version of Kafka into a directory that does not exist yet."""
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    work = target.with_name(f".{version}-{os.getpid()}")
    work.mkdir(parents=True)
    (work / "ivy.xml").write_text(_MODULE.format(version=version))
    command = [java.find(), "-jar", str(ivy), "-ivy", "ivy.xml", "-cache", "cache", "-retrieve"]
    done = subprocess.run(
        [*command, "jars/[artifact]-[revision].[ext]"], cwd=work, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ServiceError(f"the jars of Kafka {version} could not be resolved:\n{done.stdout[-2000:]}")
    (work / "jars").rename(target)
    shutil.rmtree(work)


def use(version: str) -> None:
    """Use this version for every broker that this process starts."""
    OtherBroker.version = version
    services.KafkaServer = OtherBroker  # type: ignore[attr-defined]
