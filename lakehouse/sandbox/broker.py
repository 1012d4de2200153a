"""A real single-node Kafka: broker and KRaft controller in one JVM, straight from the Maven jars."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from lakehouse.errors import ServiceError
from lakehouse.files import write_whole
from lakehouse.kafka.topics import accepts_connections, require_broker
from lakehouse.sandbox.processes import LOOPBACK, Record, Service, free_port
from lakehouse.spark import java
from lakehouse.spark.jars import jars_directory, require_jars

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAIN_CLASS = "kafka.Kafka"
_NEVER = 2**31 - 1

# Settings that differ from Kafka's defaults, each for a broker that one person uses.
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",  # a mistyped topic is an error, not a new topic
    "message.max.bytes": str(2 * 1024 * 1024),
    # One node holds every replica. Few partitions, because each costs time at start.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    # By default 128 MB of the heap, for logs far larger than these.
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    "num.network.threads": "2",
    "num.io.threads": "4",
    # Retention and rolling go by the records' own timestamps: events of last year would be deleted
    # minutes after they were produced, and a replay of many weeks would cut a segment per week.
    "log.retention.ms": "-1",
    "log.roll.ms": str(10 * 365 * 24 * 3600 * 1000),
    # Export progress is kept as a group's offsets, which would expire after an idle week.
    "offsets.retention.minutes": str(_NEVER),
}

# The path is passed as a system property, so that none of its characters is taken for a pattern.
_LOG4J = """\
<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="ERROR">
  <Appenders>
    <RollingFile name="file" fileName="${sys:lakehouse.log}" filePattern="${sys:lakehouse.log}.%i">
      <PatternLayout pattern="%d{ISO8601} %p %c{1}: %m%n"/>
      <SizeBasedTriggeringPolicy size="10 MB"/>
      <DefaultRolloverStrategy max="3"/>
    </RollingFile>
    <Console name="console" target="SYSTEM_ERR">
      <PatternLayout pattern="%p %m%n%ex"/>
    </Console>
  </Appenders>
  <Loggers>
    <Root level="INFO">
      <AppenderRef ref="file"/>
      <AppenderRef ref="console" level="ERROR"/>
    </Root>
  </Loggers>
</Configuration>
"""


@dataclass(frozen=True)
class KafkaServer(Service):
    """Kafka under HOME/kafka; its log is HOME/logs/kafka.log and rolls by size.

    Beside it, kafka-console.log has the JVM's own output and the errors, so its end says why a start failed.
    A `brief` broker runs for minutes with little to do, so its JVM optimizes little.
    """

    name: ClassVar[str] = "kafka"

    brief: bool = False

    @property
    def console(self) -> Path:
        """File of standard output and error; log4j alone writes the log's own file, to roll it."""
        return self.log.with_name("kafka-console.log")

    def require(self) -> None:
        """Raise ServiceError when there is no Java, a jar is missing or Kafka cannot use the path."""
        java.find()
        require_jars("kafka")
        if "," in str(self.data):
            raise ServiceError(
                f"kafka: {self.data} has a comma, at which Kafka would split it; choose another "
                "LAKEHOUSE_HOME"
            )

    def configure(self, port: int) -> None:
        """Write server.properties and log4j2.xml.

        The controller gets a new port at each start: nothing outside the JVM connects to it.
        """
        controller = f"{LOOPBACK}:{free_port(other_than=port)}"
        settings = {
            **_SETTINGS,
            "log.dirs": str(self.data),
            "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
            "controller.quorum.voters": f"1@{controller}",
        }
        lines = [f"{key}={_escape(value)}\n" for key, value in settings.items()]
        write_whole(self._properties, "".join(lines))
        write_whole(self._log4j, _LOG4J)

    def preparation(self) -> list[str]:
        """Return the command that formats the storage; meta.properties is the last file it writes."""
        if (self.data / "meta.properties").exists():
            return []
        # A leading dash would be taken for an option.
        cluster = base64.urlsafe_b64encode(b"\x00" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        options = ["-XX:TieredStopAtLevel=1"]  # it runs for less than a second: not worth C2
        format_storage = ["format", "--ignore-formatted", "-t", cluster, "-c", str(self._properties)]
        return [*self._java_command(options), "kafka.tools.StorageTool", *format_storage]

    def command(self, port: int) -> list[str]:
        """Return the command that runs the broker; the port is in its configuration."""
        del port
        options = ["-Xms256m", "-Xmx768m", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"]
        if self.brief:
            options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        return [*self._java_command(options), _MAIN_CLASS, str(self._properties)]

    def owns(self, command_line: Sequence[str], port: int) -> bool:
        """Whether a command line runs a broker with the configuration of this home."""
        del port
        return _MAIN_CLASS in command_line and str(self._properties) in command_line

    def endpoint(self, port: int) -> str:
        """Return the bootstrap servers."""
        return f"{LOOPBACK}:{port}"

    def answers(self, record: Record) -> bool:
        """Whether the broker accepts connections and lists itself as ready for topics."""
        if not accepts_connections(LOOPBACK, record.port):
            return False
        try:
            require_broker(self.endpoint(record.port), timeout_s=2.0)
        except ServiceError:
            return False
        return True

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    @property
    def _log4j(self) -> Path:
        return self.directory / "log4j2.xml"

    def _java_command(self, options: list[str]) -> list[str]:
        logging = [f"-Dlog4j2.configurationFile={self._log4j.as_uri()}", f"-Dlakehouse.log={self.log}"]
        return [java.find(), *java.LOCALE, *options, *logging, "-cp", str(jars_directory() / "kafka" / "*")]


def _escape(value: str) -> str:
    r"""Write a value for java.util.Properties, which reads ISO 8859-1 and takes \ for an escape."""
    utf16 = value.replace("\\", "\\\\").encode("utf-16-be")
    units = [int.from_bytes(utf16[at : at + 2], "big") for at in range(0, len(utf16), 2)]
    return "".join(
        one if one.isascii() and one.isprintable() else f"\\u{ord(one):04x}" for one in map(chr, units)
    )
