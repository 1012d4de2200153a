"""Spark's log, whose messages contain text from records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.storage.spark import properties

PROPERTIES = Path(properties.__file__).with_name("log4j2.properties")
MESSAGE = "key \x1b[2J\x9b2J\u202e\x7f é\n2026-11-26 INFO clean\r"


@pytest.mark.parametrize("name", ["file", "console"])
def test_what_spark_logs_is_printable_and_further_lines_are_indented(spark: SparkSession, name: str) -> None:
    jvm: Any = spark._jvm
    log4j, given = jvm.org.apache.logging.log4j, jvm.java.util.Properties()
    given.load(jvm.java.io.FileReader(str(PROPERTIES)))
    pattern = given.getProperty(f"appender.{name}.layout.pattern")
    layout = log4j.core.layout.PatternLayout.newBuilder().withPattern(pattern).build()
    event = log4j.core.impl.Log4jLogEvent.newBuilder().setLoggerName("a.Logger").setLevel(log4j.Level.WARN)
    event.setMessage(log4j.message.SimpleMessage(MESSAGE))
    event.setThrown(jvm.java.lang.RuntimeException(MESSAGE))

    first, *others = layout.toSerializable(event.build()).rstrip("\n").split("\n")

    assert first.endswith("WARN Logger: key ?[2J?2J?? é")
    assert others[:3] == [
        "    2026-11-26 INFO clean?",
        "    java.lang.RuntimeException: key ?[2J?2J?? é",
        "    2026-11-26 INFO clean?",
    ]
    assert all(line.startswith("    \tat ") for line in others[3:])
