"""Names of the JVM's classes, looked up once.

Python asks the JVM for each part of `org.apache.spark.sql.functions` whenever it occurs in an expression. For
a name that is not a class, the JVM searches every jar. A name's meaning does not change while the JVM lives,
so each answer is kept.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView
from pyspark import SparkContext
from pyspark.sql import SparkSession


def remember_names(spark: SparkSession) -> None:
    """Ask the session's JVM only once for each name; a second call changes nothing."""
    gateway: Any = SparkContext._gateway
    if not isinstance(gateway.jvm, _View):
        gateway.jvm = _View(gateway._gateway_client, gateway.jvm._jvm_name, id=gateway.jvm._id)
    SparkContext._jvm = gateway.jvm
    spark._jvm = gateway.jvm


class _View(JVMView):  # type: ignore[misc]
    """Names outside a package, and whole dotted names."""

    def __getattr__(self, name: str) -> Any:
        return _kept(self, name, super().__getattr__(name))


class _Package(JavaPackage):  # type: ignore[misc]
    """The contents of a package."""

    def __getattr__(self, name: str) -> Any:
        return _kept(self, name, super().__getattr__(name))


class _Class(JavaClass):  # type: ignore[misc]
    """Static methods and inner classes of a class; the values of its fields are asked for each time."""

    def __getattr__(self, name: str) -> Any:
        return _kept(self, name, super().__getattr__(name))


def _kept(owner: Any, name: str, found: Any) -> Any:
    if type(found) is JavaPackage:
        found = _Package(found._fqn, found._gateway_client, found._jvm_id)
    elif type(found) is JavaClass:
        found = _Class(found._fqn, found._gateway_client)
    elif not isinstance(found, JavaMember):
        return found
    owner.__dict__[name] = found
    return found
