"""`lakehouse contract`: its output, findings and exit codes. With a registry: integration/test_formats.py."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import fastavro
import pytest

from lakehouse.common.errors import SettingsError
from lakehouse.common.record_lines import RecordFormat
from lakehouse.engine.formats.compatibility import KINDS, findings
from lakehouse.engine.formats.contracts import data_contract, schema_of_contract
from lakehouse.engine.formats.protobuf import compiled
from lakehouse.storage.kafka.schema_registry import Registered
from lakehouse.streams.definition import Contract, Field, FieldType, Source
from tests.support.commands import Ended, run_command

NULLABLE = (
    '{"type":"record","name":"M","fields":[{"name":"serviceId","type":["null","string"]},'
    '{"name":"metricName","type":"int"},{"name":"timestamp","type":"long"}]}'
)
OF_JSON = (
    '{"properties":{"serviceId":{"type":"string"},"metricName":{"type":"string"},'
    '"value":{"type":["number","null"]}},"required":["serviceId","metricName","value"]}'
)


def contract(environment: Mapping[str, str], *arguments: str) -> Ended:
    return run_command(environment, "contract", *arguments)


def test_a_contract_is_printed_as_a_schema_of_each_format() -> None:
    avro = json.loads(contract({}, "export", "sales", "--format", "avro").stdout)
    assert {one["name"]: one["type"] for one in avro["fields"]} == {
        "product": "string",
        "value": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 9},
        "timestamp": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
    }
    fastavro.parse_schema(avro)
    of_json = json.loads(contract({}, "export", "sales").stdout)
    assert (of_json["required"], of_json["properties"]["product"]) == (
        ["product", "value"],
        {"type": "string", "minLength": 1},
    )
    compiled(contract({}, "export", "sales", "--format", "protobuf").stdout)
    odcs = json.loads(contract({}, "export", "calls", "--topic", "metricsTopic", "--format", "odcs").stdout)
    (topic,) = odcs["schema"]
    assert [(one["name"], one["required"]) for one in topic["properties"]] == [
        ("user1", True),
        ("user2", True),
        ("metrics", False),
        ("timestamp", False),
    ]
    refused = contract({}, "export", "calls")
    assert (refused.returncode, "--topic" in refused.stderr) == (2, True)


def source(*names: str) -> Source:
    fields = (Field(name, f"c{number}", FieldType.STRING) for number, name in enumerate(names))
    return Source("t", "events", Contract(tuple(fields), event_time="at"))


def test_types_of_objects_have_names_of_their_own() -> None:
    """Avro record names are unique in a schema, Protobuf message names among sibling messages and fields."""
    made = source("a.meta.x", "b.meta.y", "Events.z", "metaData.x", "metadata.x", "c.inner.x", "c.Inner")
    avro = json.loads(schema_of_contract(made, "avro").text)
    fastavro.parse_schema(avro)
    records = re.findall(r'"type": "record",\s+"name": "(\w+)"', json.dumps(avro, indent=2))
    assert records == [
        "Events",
        "A",
        "Meta",
        "B",
        "Meta_2",
        "Events_2",
        "Metadata",
        "Metadata_2",
        "C",
        "Inner",
    ]
    text = schema_of_contract(made, "protobuf").text
    compiled(text)
    assert re.findall(r"message (\w+)", text) == [
        *("Events", "A", "Meta", "B", "Meta", "Events_2", "Metadata", "Metadata_2", "C", "Inner_2")
    ]


@pytest.mark.parametrize(
    ("names", "format_", "said"),
    [
        (("a", "a.b"), "odcs", "a.b: the contract uses this name for both a field and an object with fields"),
        (("a.b", "a"), "avro", "a: the contract uses this name for both a field and an object with fields"),
        (("a_b", "aB"), "protobuf", "Protobuf cannot distinguish a_b from aB: both are aB in JSON"),
        (
            ('a = 1; } message B { string "x',),
            "protobuf",
            "Protobuf does not allow the field name 'a = 1; } message B",
        ),
        (("a\n",), "avro", r"Avro does not allow the field name 'a\n'"),
    ],
)
def test_names_that_a_format_cannot_have_are_refused(names: tuple[str, ...], format_: str, said: str) -> None:
    made = source(*names)
    with pytest.raises(SettingsError, match=f"^{re.escape(said)}"):
        _ = data_contract(made, "t") if format_ == "odcs" else schema_of_contract(made, format_)


@pytest.mark.parametrize(
    ("format_", "schema", "said", "code"),
    [
        (
            "avro",
            NULLABLE,
            [
                "warning: serviceId is required, but can be absent or null in the schema",
                "breaks: metricName must be a string, but can be int in the schema",
                "breaks: value is required, but the schema lacks it",
            ],
            1,
        ),
        (
            "protobuf",
            'syntax = "proto3"; message M { string service_id = 1; bytes metricName = 2; float value = 3; }',
            ["breaks: metricName must be a string, but has a different type in the schema"],
            1,
        ),
        (
            "json-schema",
            OF_JSON,
            ["warning: value is required, but can be absent or null in the schema"],
            0,
        ),
    ],
)
def test_a_schema_in_a_file_is_compared_field_by_field(
    tmp_path: Path, format_: str, schema: str, said: list[str], code: int
) -> None:
    file = tmp_path / "schema"
    file.write_text(schema)
    done = contract({}, "check", "metrics", "--format", format_, "--against", str(file))
    assert (done.stdout.strip().split("\n")[:-1], done.returncode) == (said, code)


@pytest.mark.parametrize(
    ("format_", "schema"),
    [
        (
            "avro",
            '{"type":"record","name":"M","fields":[{"name":"n","type":"%s"},{"name":"at","type":"%s"}]}',
        ),
        ("json-schema", '{"properties":{"n":{"type":"%s"},"at":{"type":"%s"}},"required":["n"]}'),
    ],
)
def test_a_double_for_a_whole_number_is_a_warning(format_: RecordFormat, schema: str) -> None:
    number = "double" if format_ == "avro" else "number"
    whole = (
        Field("n", "n", FieldType.LONG),
        Field("n", "n", FieldType.STRING, accepts_numbers=True),
    )
    for one in (*whole, Field("n", "n", FieldType.STRING)):
        made = Source("t", "t", Contract((one,), event_time="at"), format=format_)
        found = findings(made, Registered(KINDS[format_], schema % (number, number)))
        assert [(finding.text, finding.breaks) for finding in found] == [
            (f"n must be a {one.type.value}, but can be {number} in the schema", one not in whole),
            (f"at must be a time, but can be {number} in the schema", False),
        ]


DOUBLED = '{"type":"record","name":"A0","fields":[{"name":"x","type":"int"}]}'
for level in range(1, 31):
    DOUBLED = (
        f'{{"type":"record","name":"A{level}","fields":[{{"name":"x","type":{DOUBLED}}},'
        f'{{"name":"y","type":"A{level - 1}"}}]}}'
    )


@pytest.mark.parametrize(
    ("format_", "schema", "said", "code"),
    [
        (
            "avro",
            f'{{"type":"record","name":"M","fields":[{{"name":"value","type":{DOUBLED}}}]}}',
            "breaks: the schema has 3,221,225,472 types in the contract's fields, counting each use",
            1,
        ),
        ("avro", "[" * 100_000, "breaks: the schema is nested too deeply: ", 1),
        ("json-schema", "[" * 100_000, "could not be checked: its JSON is nested too deeply", 2),
        ("json-schema", "[]", "breaks: serviceId is required, but the schema lacks it", 1),
    ],
)
def test_a_hostile_schema_is_compared_in_a_line(
    tmp_path: Path, format_: str, schema: str, said: str, code: int
) -> None:
    file = tmp_path / "schema"
    file.write_text(schema)
    done = contract({}, "check", "metrics", "--format", format_, "--against", str(file))
    assert (said in done.stdout + done.stderr, done.returncode) == (True, code), done
