"""A separate JVM that speaks Spark's RPC to a driver.

    python -m tests.support.stranger PORT [property=value ...]

It requests the driver's shuffle tracker, and prints the result in one line.
"""

from __future__ import annotations

import sys
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import launch_gateway


def main(port: str, *properties: str) -> None:
    """Try to reach an endpoint of the driver at a port on this machine."""
    jvm: Any = launch_gateway().jvm  # type: ignore[no-untyped-call]
    spark = jvm.org.apache.spark
    conf = spark.SparkConf(False)
    for one in properties:
        conf.set(*one.split("=", 1))
    of_file = getattr(spark.SecurityManager, "$lessinit$greater$default$3")()
    security = spark.SecurityManager(conf, jvm.scala.Option.empty(), of_file)
    own = spark.rpc.RpcEnv.create("stranger", "127.0.0.1", 0, conf, security, True)
    try:
        found = own.setupEndpointRef(spark.rpc.RpcAddress("127.0.0.1", int(port)), "MapOutputTracker")
        sys.stdout.write(f"let in: {found.toString()}\n")
    except Py4JJavaError as error:
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        sys.stdout.write(f"refused: {str(cause.getMessage()).splitlines()[0]}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
