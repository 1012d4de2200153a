"""Start, stop and inspect the local broker and Redis, for `lakehouse services` and the demo.

`start` leaves daemons running after the command. `local_services` runs services for a `with` block. Both
store everything under `settings.home`, so different homes are independent. Both hold the home's lock while
they change anything, so that two concurrent commands cannot start two brokers on the same data.
"""

from __future__ import annotations

import fcntl
import json
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import SecretStr

from lakehouse.common.errors import ServiceError
from lakehouse.common.ownership import foreign
from lakehouse.common.state_files import OWNER_ONLY, make_home, make_private, write_whole
from lakehouse.dev.services.broker import KafkaServer
from lakehouse.dev.services.interrupts import DeferredInterrupts
from lakehouse.dev.services.processes import (
    Child,
    Record,
    Service,
    choose_port,
    find_process,
    read_record,
    stop_process,
    write_record,
)
from lakehouse.dev.services.redis_server import RedisServer
from lakehouse.settings import services_file
from lakehouse.settings.kafka import KafkaSettings
from lakehouse.settings.reading import from_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from lakehouse.settings import Settings
    from lakehouse.settings.kafka_access import KafkaAccess

State = Literal["running", "not answering", "died", "stopped"]

# After a kill, a broker waits for its old session to expire (9 s) and recovers its logs before it answers.
_START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 20.0
_ABANDON_TIMEOUT_S = 5.0
_LOCK_TIMEOUT_S = _START_TIMEOUT_S + _STOP_TIMEOUT_S
_POLL_S = 0.05


@dataclass(frozen=True)
class Endpoints:
    """Addresses for clients: the broker's bootstrap servers, and the URL of Redis with its password.

    `security` contains the additional settings for a secured broker.
    """

    kafka: str
    redis: str = field(repr=False)
    security: tuple[tuple[str, str], ...] = ()

    @property
    def access(self) -> KafkaAccess:
        """The addresses and credentials with which clients connect to the broker."""
        return self._of_kafka().access

    @property
    def update(self) -> dict[str, Any]:
        """The changes to make in Settings so that they point to these endpoints."""
        kafka = self._of_kafka()
        given = {f"kafka.{name}": getattr(kafka, name) for name in kafka.model_fields_set}
        return {"redis.url": SecretStr(self.redis), **given}

    def _of_kafka(self) -> KafkaSettings:
        secured = from_files("kafka", dict(self.security))
        return KafkaSettings.model_validate({"bootstrap_servers": self.kafka, **secured})


@dataclass(frozen=True)
class ServiceStatus:
    """A service's state. `pid` and `endpoint` (without the password) are None if it is not running.

    running: its process answers. not answering: its process exists but does not answer, for example because
    it is starting. died: its process exited without being stopped. stopped: it is not supposed to be running.
    """

    name: str
    state: State
    pid: int | None
    endpoint: str | None
    data: Path
    log: Path


@dataclass(frozen=True)
class Ports:
    """The services' ports. 0 means the last run's port if it is free, otherwise any free port."""

    kafka: int = 0
    redis: int = 0


ANY_PORTS = Ports()


def start(
    settings: Settings,
    *,
    ports: Ports = ANY_PORTS,
    secure: bool = False,
    on_progress: Callable[[str], None] = lambda _message: None,
) -> Endpoints:
    """Start all services that are not running yet, as daemons, and return when both answer.

    With `secure`, the broker has TLS, users and permissions from now on. Raises ServiceError if a service
    cannot be started. After an error, Ctrl-C or SIGTERM, nothing that this call started is left running.
    """
    endpoints, _ = _bring_up(settings, on_progress, ports=ports, with_parent=False, secure=secure)
    return endpoints


def stop(settings: Settings, *, on_progress: Callable[[str], None] = lambda _message: None) -> list[str]:
    """Stop all services of this home directory, however they were started. Return the stopped ones' names."""
    return _bring_down(settings, _services(settings), on_progress)


def status(settings: Settings) -> list[ServiceStatus]:
    """Return the state of every service without changing anything."""
    return [_status(service) for service in _services(settings)]


@contextmanager
def local_services(
    settings: Settings,
    *,
    ports: Ports = ANY_PORTS,
    brief: bool = False,
    secure: bool = False,
    on_progress: Callable[[str], None] = lambda _message: None,
) -> Iterator[Endpoints]:
    """Run both services during the block.

    With `brief`, the services are configured for little load. `secure` has the same effect as in `start`.
    Services that are already running are used and left running. Services that this call starts are stopped at
    the end of the block. If this process is killed earlier, the kernel kills them (on Linux).
    """
    endpoints, started = _bring_up(
        settings, on_progress, ports=ports, with_parent=True, brief=brief, secure=secure
    )
    try:
        yield endpoints
    finally:
        _bring_down(settings, started, on_progress)


def administrator(settings: Settings) -> KafkaAccess | None:
    """Return the secured broker's address and its administrator's credentials, or None if none is running."""
    kafka = _kafka(settings)
    record = read_record(kafka)
    return None if record is None or not kafka.secure else kafka.access(record.port)


def _kafka(
    settings: Settings, ports: Ports = ANY_PORTS, *, brief: bool = False, secure: bool = False
) -> KafkaServer:
    kafka = KafkaServer(
        home=settings.home, configured_port=ports.kafka, brief=brief, port_of_redis=ports.redis
    )
    return replace(kafka, secure=secure or kafka.is_secured)


def _services(
    settings: Settings, ports: Ports = ANY_PORTS, *, brief: bool = False, secure: bool = False
) -> list[Service]:
    # Redis comes first: it starts quickly, so its failures are seen before the wait for the broker.
    return [
        RedisServer(home=settings.home, configured_port=ports.redis),
        _kafka(settings, ports, brief=brief, secure=secure),
    ]


def _bring_up(
    settings: Settings,
    on_progress: Callable[[str], None],
    *,
    ports: Ports,
    with_parent: bool,
    brief: bool = False,
    secure: bool = False,
) -> tuple[Endpoints, list[Service]]:
    former = _kafka(settings)
    services = _services(settings, ports, brief=brief, secure=secure)
    started: list[tuple[Service, Child]] = []
    with DeferredInterrupts() as interrupts, _locked(settings.home, interrupts, on_progress):
        try:
            if secure and not former.secure:
                _refuse_open_broker(former)
            records = _adopt(services, interrupts, on_progress)
            missing = [service for service in services if service.name not in records]
            # Raise foreseeable errors here, before anything is started.
            for service in missing:
                service.require()
            chosen = {service.name: choose_port(service) for service in missing}
            for service in missing:
                _prepare(service, chosen[service.name], interrupts, on_progress)
                on_progress(f"{service.name}: starting on {service.shown(chosen[service.name])}")
                child = _spawn(service, service.command(chosen[service.name]), with_parent=with_parent)
                started.append((service, child))
                records[service.name] = child.record(chosen[service.name])
                write_record(service, records[service.name])
                _await_answer(service, records[service.name], interrupts, child)
                service.let_in(chosen[service.name])
                on_progress(f"{service.name}: ready (pid {child.pid})")
            interrupts.check()
        except BaseException:
            for service, child in reversed(started):
                if child.exit_code() is None:
                    on_progress(f"{service.name}: stopping, because startup failed")
                    child.stop(timeout_s=_ABANDON_TIMEOUT_S)
                service.pid_file.unlink(missing_ok=True)
            raise
        finally:
            _write_endpoints(settings)
    endpoints = {service.name: service.endpoint(records[service.name].port) for service in services}
    security = tuple(pair for service in services for pair in service.settings().items())
    return Endpoints(**endpoints, security=security), [service for service, _ in started]


def _refuse_open_broker(kafka: KafkaServer) -> None:
    if find_process(kafka, read_record(kafka)) is not None:
        raise ServiceError(
            "kafka: the broker is running without security; stop it with `lakehouse services down` and start "
            "it again"
        )


def _adopt(
    services: Sequence[Service], interrupts: DeferredInterrupts, on_progress: Callable[[str], None]
) -> dict[str, Record]:
    """Return the records of running services, and delete the records of processes that have ended."""
    records = {}
    for service in services:
        record = read_record(service)
        if record is None or find_process(service, record) is None:
            service.pid_file.unlink(missing_ok=True)
            continue
        # The command that started the service may have been interrupted before the service answered.
        _await_answer(service, record, interrupts)
        on_progress(f"{service.name}: already running on {service.shown(record.port)} (pid {record.pid})")
        if service.configured_port not in {0, record.port}:
            on_progress(
                f"{service.name}: port {service.configured_port} takes effect after `lakehouse services down`"
            )
        records[service.name] = record
    return records


def _prepare(
    service: Service, port: int, interrupts: DeferredInterrupts, on_progress: Callable[[str], None]
) -> None:
    for directory in (service.directory, service.data, service.console.parent):
        make_private(directory)
    service.configure(port)
    for file in service.directory.iterdir():
        if file.is_file():
            file.chmod(OWNER_ONLY)
    command = service.preparation()
    if not command:
        return
    on_progress(f"{service.name}: preparing {service.data}")
    child = _spawn(service, command, with_parent=True)
    try:
        while (code := child.exit_code()) is None:
            interrupts.check()
            time.sleep(_POLL_S)
    finally:
        child.stop(timeout_s=0)
    if code != 0:
        raise ServiceError(
            f"{service.name}: preparing {service.data} failed with exit code {code}; "
            f"last lines of {service.console}:\n{child.last_lines()}"
        )


def _await_answer(
    service: Service, record: Record, interrupts: DeferredInterrupts, child: Child | None = None
) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not service.answers(record):
        interrupts.check()
        if child is not None and (code := child.exit_code()) is not None:
            raise ServiceError(
                f"{service.name} exited with code {code} while starting; "
                f"last lines of {service.console}:\n{child.last_lines()}"
            )
        if child is None and find_process(service, record) is None:
            raise ServiceError(
                f"{service.name}: process {record.pid} exited before it answered on "
                f"{service.shown(record.port)}; see {service.log}, and start again"
            )
        if time.monotonic() > deadline:
            raise ServiceError(
                f"{service.name}: process {record.pid} did not answer on {service.shown(record.port)} "
                f"within {_START_TIMEOUT_S:.0f} s; see {service.log}, and run `lakehouse services down`"
            )
        time.sleep(_POLL_S)
    interrupts.check()  # a signal may have arrived during the check


def _bring_down(
    settings: Settings, services: Sequence[Service], on_progress: Callable[[str], None]
) -> list[str]:
    if not services or not settings.home.is_dir():
        return []
    stopped = []
    with DeferredInterrupts() as interrupts, _locked(settings.home, interrupts, on_progress):
        try:
            for service in reversed(services):
                process = find_process(service, read_record(service))
                if process is not None:
                    on_progress(f"{service.name}: stopping (pid {process.pid})")
                    killed = stop_process(service.name, process, timeout_s=_STOP_TIMEOUT_S)
                    how = "killed, because it did not stop in time" if killed else "stopped"
                    on_progress(f"{service.name}: {how}")
                    stopped.append(service.name)
                service.pid_file.unlink(missing_ok=True)
        finally:
            _write_endpoints(settings)
    return stopped


def _status(service: Service) -> ServiceStatus:
    record = read_record(service)
    state: State = "stopped"
    if record is not None and find_process(service, record) is None:
        record, state = None, "died"
    elif record is not None:
        state = "running" if service.answers(record) else "not answering"
    return ServiceStatus(
        name=service.name,
        state=state,
        pid=record.pid if record else None,
        endpoint=service.shown(record.port) if record else None,
        data=service.data,
        log=service.log,
    )


def _spawn(service: Service, command: list[str], *, with_parent: bool) -> Child:
    return Child(command, directory=service.directory, console=service.console, with_parent=with_parent)


def _write_endpoints(settings: Settings) -> None:
    """Record the running services in services.json. The settings read the endpoints from this file."""
    entries = {}
    for service in _services(settings):
        record = read_record(service)
        if record is not None and find_process(service, record) is not None:
            entries[service.name] = {
                "endpoint": service.endpoint(record.port),
                "pid": record.pid,
                "data": str(service.data),
                "log": str(service.log),
                **({"settings": found} if (found := service.settings()) else {}),
            }
    path = services_file(settings.home)
    if entries:
        write_whole(path, json.dumps(entries, indent=2) + "\n", mode=OWNER_ONLY)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _locked(home: Path, interrupts: DeferredInterrupts, on_progress: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock, so that only one command at a time starts or stops the services in a home directory.

    The kernel releases the lock when the process that holds it exits, so there are no stale locks.
    """
    try:
        make_home(home)
        if (reason := foreign(home)) is not None:  # a service's settings can run code
            raise ServiceError(
                f"refusing to start or stop the local services in {home}: {reason}. Make sure that you own "
                "it and only you can write to it (chown, chmod go-w), or set `home` (LAKEHOUSE_HOME) to "
                "another directory"
            )
        with (home / "services.lock").open("a") as file:
            _acquire(file.fileno(), home, interrupts, on_progress)
            yield
    except OSError as error:
        raise ServiceError(
            f"the local services cannot access their files in {home}: {error}; make it writable or "
            "set `home` (LAKEHOUSE_HOME) to another directory"
        ) from error


def _acquire(
    lock: int, home: Path, interrupts: DeferredInterrupts, on_progress: Callable[[str], None]
) -> None:
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    waiting = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"another command has been starting or stopping the services in {home} for "
                    f"{_LOCK_TIMEOUT_S:.0f} s; stop it, then try again"
                ) from None
        else:
            return
        if not waiting:
            on_progress("waiting for another command that is starting or stopping these services")
            waiting = True
        interrupts.check()
        time.sleep(_POLL_S)
