"""A real single-node Kafka, run from Maven's jars. The broker and its KRaft controller share a JVM."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from lakehouse.common.errors import ServiceError
from lakehouse.common.extras import needed
from lakehouse.common.state_files import write_whole
from lakehouse.dev.services.processes import LOOPBACK, Record, Service, free_port, free_port_after
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.settings.secrets import SecretFile
from lakehouse.storage.kafka.probe import accepts_connections, require_broker
from lakehouse.storage.kafka.rights import set_passwords
from lakehouse.storage.spark import java
from lakehouse.storage.spark.jars import jars_directory, require_jars

if TYPE_CHECKING:
    from collections.abc import Sequence

ADMIN, PIPELINE, PRODUCER = "admin", "lakehouse", "producer"

_MAIN_CLASS = "kafka.Kafka"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_NEVER = 2**31 - 1

# Settings that differ from Kafka's defaults, because this broker has a single user.
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",  # a mistyped topic is an error, not a new topic
    "message.max.bytes": str(2 * 1024 * 1024),
    # One node stores every replica. There are few partitions, because each partition slows startup.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    # The default buffer takes 128 MB of heap, because it is meant for far larger logs.
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    "num.network.threads": "2",
    "num.io.threads": "4",
    # Retention and rolling use the records' own timestamps. By default, events from last year would be
    # deleted minutes after they were produced, and a replay of many weeks would create a segment per week.
    "log.retention.ms": "-1",
    "log.roll.ms": str(10 * 365 * 24 * 3600 * 1000),
    # Export positions are stored as a group's offsets. By default, they expire after an idle week.
    "offsets.retention.minutes": str(_NEVER),
}

# The path is passed as a system property, because log4j would interpret characters in it as a pattern.
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
    """A Kafka broker that stores its files in HOME/kafka. Its log, HOME/logs/kafka.log, is rolled by size.

    In the same directory, kafka-console.log contains the JVM's output and the errors. Its last lines explain
    a failed start. A `brief` broker runs for minutes with little load, so its JVM spends little time on
    optimization. A `secure` broker uses TLS, and denies any access that is not granted. Users authenticate
    with SCRAM-SHA-512 on its port or with certificates on a second port. If a port is configured, the
    controller's port and the second port are the next free ports after it, except `port_of_redis`.
    """

    name: ClassVar[str] = "kafka"

    brief: bool = False
    secure: bool = False
    port_of_redis: int = 0

    @property
    def security(self) -> Path:
        """The directory that contains a secured broker's certificates and passwords."""
        return self.directory / "security"

    @property
    def jars(self) -> Path:
        """The directory that contains the broker's jars, which determine its version."""
        return jars_directory() / "kafka"

    @property
    def console(self) -> Path:
        """The file for standard output and error. Kafka's log is a different file, which log4j rolls."""
        return self.log.with_name("kafka-console.log")

    def require(self) -> None:
        """Raise ServiceError if Java or a jar is missing, or if Kafka cannot use the data directory."""
        java.find()
        require_jars("kafka")
        if "," in str(self.data):
            raise ServiceError(
                f"kafka: {self.data} contains a comma, and Kafka would split the path there; choose a "
                "different `home` (LAKEHOUSE_HOME)"
            )

    def configure(self, port: int) -> None:
        """Write server.properties and log4j2.xml.

        The controller's port can differ at each start, because only its own JVM connects to it.
        """
        controller_port = self._further_port(port)
        controller = f"{LOOPBACK}:{controller_port}"
        settings = {
            **_SETTINGS,
            "log.dirs": str(self.data),
            "controller.quorum.voters": f"1@{controller}",
            **(self._secured(port, controller_port) if self.secure else _open(port, controller)),
        }
        lines = [f"{key}={_escape(value)}\n" for key, value in settings.items()]
        write_whole(self._properties, "".join(lines))
        write_whole(self._log4j, _LOG4J)

    def preparation(self) -> list[str]:
        """Return the command that formats the storage, or an empty list if it is already formatted.

        The command writes meta.properties last.
        """
        if (self.data / "meta.properties").exists():
            return []
        # A leading dash would be parsed as an option.
        cluster = base64.urlsafe_b64encode(b"\x00" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        options = ["-XX:TieredStopAtLevel=1"]  # the command is too short for C2 to pay off
        format_storage = ["format", "--ignore-formatted", "-t", cluster, "-c", str(self._properties)]
        return [*self._java_command(options), "kafka.tools.StorageTool", *format_storage]

    def command(self, port: int) -> list[str]:
        """Return the command that runs the broker. The port is in the broker's configuration."""
        del port
        options = ["-Xms256m", "-Xmx768m", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"]
        if self.brief:
            options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        return [*self._java_command(options), _MAIN_CLASS, str(self._properties)]

    def owns(self, command_line: Sequence[str], port: int) -> bool:
        """Return whether a command line runs a broker with the configuration in this home directory."""
        del port
        return _MAIN_CLASS in command_line and str(self._properties) in command_line

    def endpoint(self, port: int) -> str:
        """Return the bootstrap servers for clients."""
        return f"{LOOPBACK}:{port}"

    def answers(self, record: Record) -> bool:
        """Return whether the broker accepts connections and reports that topics can be used."""
        if not accepts_connections(LOOPBACK, record.port):
            return False
        try:
            require_broker(self.access(record.port), timeout_s=2.0)
        except ServiceError:
            return False
        return True

    def access(self, port: int) -> KafkaAccess:
        """Return the address and, for a secured broker, the administrator's credentials."""
        if not self.secure:
            return KafkaAccess(self.endpoint(port))
        return by_certificate(self.security, f"{LOOPBACK}:{self._second_port()}", ADMIN)

    def settings(self) -> dict[str, str]:
        """Return the settings that the pipeline's user needs. An open broker needs none."""
        if not self.secure:
            return {}
        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": PIPELINE,
            "sasl_password_file": str(self.security / f"{PIPELINE}.password"),
            "ssl_ca": str(self.security / "ca.pem"),
        }

    @property
    def is_secured(self) -> bool:
        """Whether the broker of this home directory was ever secured. Once secured, it remains secured."""
        return (self.security / "ca.pem").exists()

    def let_in(self, port: int) -> None:
        """Set the passwords of a secured broker's users, once the broker is running. Raises ServiceError."""
        if self.secure:
            names = (PIPELINE, PRODUCER)
            passwords = {one: (self.security / f"{one}.password").read_text("utf-8") for one in names}
            set_passwords(self.access(port), passwords)

    def _second_port(self) -> int:
        return int((self.directory / "second-port").read_text(encoding="utf-8"))

    def _further_port(self, *taken: int) -> int:
        """Return a free port that is not in `taken`. If a port is configured, the search starts after it."""
        if not self.configured_port:
            return free_port(other_than=taken)
        return free_port_after(self.configured_port, other_than=(*taken, self.port_of_redis))

    def _secured(self, port: int, controller_port: int) -> dict[str, str]:
        with needed("sandbox", "a local broker with users and rights"):
            from lakehouse.dev.services.certificates import make_security  # noqa: PLC0415 - a tenth of a second

        make_security(self.security, (ADMIN, PIPELINE, PRODUCER))
        second = self._further_port(port, controller_port)
        write_whole(self.directory / "second-port", str(second))
        listeners = f"SASL_SSL://{LOOPBACK}:{port},SSL://{LOOPBACK}:{second}"
        return {
            "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{controller_port}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.security / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.security / "ca.pem"),
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{_SCRAM} required;",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:broker;User:{ADMIN}",
        }

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    @property
    def _log4j(self) -> Path:
        return self.directory / "log4j2.xml"

    def _java_command(self, options: list[str]) -> list[str]:
        logging = [f"-Dlog4j2.configurationFile={self._log4j.as_uri()}", f"-Dlakehouse.log={self.log}"]
        return [java.find(), *java.LOCALE, *options, *logging, "-cp", f"{self.jars}/*"]


def by_certificate(security: Path, servers: str, user: str) -> KafkaAccess:
    """Return the access to a secured broker for a user who authenticates with a certificate."""
    ca, certificate, key = (
        SecretFile(security / name, name) for name in ("ca.pem", f"{user}.pem", f"{user}-key.pem")
    )
    return KafkaAccess(servers, "SSL", ca=ca, certificate=certificate, key=key)


def _open(port: int, controller: str) -> dict[str, str]:
    return {
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
    }


def _escape(value: str) -> str:
    r"""Escape a value for java.util.Properties, which reads ISO 8859-1 and uses \ as the escape character."""
    utf16 = value.replace("\\", "\\\\").encode("utf-16-be")
    units = [int.from_bytes(utf16[at : at + 2], "big") for at in range(0, len(utf16), 2)]
    return "".join(
        one if one.isascii() and one.isprintable() else f"\\u{ord(one):04x}" for one in map(chr, units)
    )
