"""Members that an upgrade of a library may remove: undocumented members, each used in only one module.

The format is the same as in `lakehouse.storage.spark.members`, which lists Spark's members. A signature
contains the names of parameters; a name without parentheses is an attribute. tests/test_library_internals.py
looks up each member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakehouse.storage.spark.members import CLASS, NEW, Member, members

GX = "great_expectations"
FETCH, BATCHES = "kafka.protocol.consumer", "kafka.record.default_records"
SENTINEL, H11 = "redis.sentinel", "uvicorn.protocols.http.h11_impl.H11Protocol"
DEPENDENCIES, BY_ENGINE = "fastapi.dependencies.models", "metrics,runtime_configuration,execution_engine"


@dataclass(frozen=True)
class Library:
    """A distribution, our module that uses its internals, and the internals by purpose.

    Any module may import documented members: all names in some modules, and some single names.
    """

    distribution: str
    home: str
    documented: frozenset[str]
    members: Mapping[str, tuple[Member, ...]]

    @property
    def package(self) -> str:
        """The package to import."""
        return next(iter(self.documented)).partition(".")[0]


LIBRARIES = (
    Library(
        "kafka-python",
        "lakehouse/storage/kafka/internals.py",
        frozenset(("kafka", "kafka.admin", "kafka.errors", "kafka.net.sasl.oauth")),
        {
            "the time in a batch's header, which needs no codec and unpacks nothing": (
                *members("kafka.net.compat.KafkaNetClient", f"{NEW}(net,manager,configs)"),
                *members("kafka.net.selector.NetworkSelector", f"{NEW}(configs)"),
                *members(
                    "kafka.net.manager.KafkaConnectionManager",
                    f"{NEW}(net,configs)",
                    "cluster",
                    "run(coro,args)",
                    "send(request,node_id,request_timeout_ms)",
                ),
                *members(
                    "kafka.cluster.ClusterMetadata", "leader_for_partition(partition)", "request_update()"
                ),
                *members(
                    f"{FETCH}.FetchRequest",
                    "forgotten_topics_data",
                    "isolation_level",
                    "max_bytes",
                    "max_version",
                    "max_wait_ms",
                    "min_bytes",
                    "min_version",
                    "min_version_for_isolation_level(il)",
                    "rack_id",
                    "session_epoch",
                    "session_id",
                    "topics",
                ),
                *members(f"{FETCH}.FetchRequest.FetchTopic", "partitions", "topic"),
                *members(
                    f"{FETCH}.FetchRequest.FetchTopic.FetchPartition",
                    "current_leader_epoch",
                    "fetch_offset",
                    "last_fetched_epoch",
                    "log_start_offset",
                    "partition",
                    "partition_max_bytes",
                ),
                *members(f"{FETCH}.FetchResponse", "responses"),
                *members(f"{FETCH}.FetchResponse.FetchableTopicResponse", "partitions"),
                *members(
                    f"{FETCH}.FetchResponse.FetchableTopicResponse.PartitionData", "error_code", "records"
                ),
                *members("kafka.record.memory_records.MemoryRecords", f"{NEW}(bytes_data)"),
                *members(
                    f"{BATCHES}.DefaultRecordBatch",
                    "attributes",
                    "first_timestamp",
                    "last_offset",
                    "max_timestamp",
                    "timestamp_type",
                ),
            ),
            "the size of a record in a batch of its own": members(
                f"{BATCHES}.DefaultRecordBatchBuilder", "estimate_size_in_bytes(key,value,headers)"
            ),
            "the partition that Kafka's default partitioner chooses": members(
                "kafka.partitioner", "murmur2(data)"
            ),
        },
    ),
    Library(
        "redis",
        "lakehouse/sinks/redis/client.py",
        frozenset(
            (
                "redis",
                "redis.asyncio",
                "redis.asyncio.retry",
                "redis.asyncio.sentinel",
                "redis.backoff",
                "redis.exceptions",
                "redis.retry",
                f"{SENTINEL}.MasterNotFoundError",
                f"{SENTINEL}.Sentinel",
            )
        ),
        {
            "asking Sentinels before each attempt to connect (its issue 3874)": (
                *members(
                    f"{SENTINEL}.SentinelManagedConnection",
                    "connect_to(address)",
                    "connection_pool",
                    "is_connected",
                    "send_packed_command(command,check_health)",
                ),
                *members(f"{SENTINEL}.SentinelManagedSSLConnection", CLASS),
                *members(f"{SENTINEL}.SentinelConnectionPoolProxy", "get_master_address()"),
            ),
            "the options in a URL, for the clients of Sentinels": members(
                "redis.connection", "parse_url(url)"
            ),
        },
    ),
    Library(
        "uvicorn",
        "lakehouse/serving/security/connections.py",
        frozenset(("uvicorn",)),
        {
            "deadlines, and a limited number of connections": members(
                H11,
                f"{NEW}(config,server_state,app_state,_loop)",
                "client",
                "conn",
                "connection_lost(exc)",
                "connection_made(transport)",
                "connections",
                "data_received(data)",
                "loop",
                "pause_writing()",
                "resume_writing()",
                "timeout_keep_alive_task",
                "transport",
            ),
            "ending answers that would go on": members("uvicorn.server.Server", "handle_exit(sig,frame)"),
            "loading a renewed certificate": members(
                "uvicorn.config.Config", "callback_notify", "timeout_notify"
            ),
        },
    ),
    Library(
        "fastapi",
        "lakehouse/serving/strictness.py",
        frozenset(("fastapi", "fastapi.exceptions", "fastapi.responses")),
        {
            "the route that answers a request, in its scope": members(
                "fastapi.routing.APIRoute", "matches(scope)", "path"
            ),
            "the parameters that a route declares": (
                *members("fastapi.routing.APIRoute", "dependant"),
                *members(f"{DEPENDENCIES}.Dependant", "dependencies", "query_params"),
                *members(f"{DEPENDENCIES}.ModelField", "alias", "field_info"),
            ),
        },
    ),
    Library(
        "great-expectations",
        "lakehouse/streams/suite_internals.py",
        frozenset((GX, f"{GX}.data_context.AbstractDataContext", f"{GX}.expectations")),
        {
            "our kinds of expectation, and a metric of theirs": (
                *members(
                    f"{GX}.expectations.expectation.BatchExpectation",
                    f"_validate({BY_ENGINE})",
                    "domain_keys",
                    "metric_dependencies",
                    "success_keys",
                ),
                *members(f"{GX}.expectations.UnexpectedRowsExpectation", f"_validate({BY_ENGINE})"),
                *members(
                    f"{GX}.expectations.metrics.table_metric_provider.TableMetricProvider",
                    "value_keys",
                ),
                *members(
                    f"{GX}.expectations.metrics.metric_provider",
                    "metric_partial(engine,partial_fn_type,domain_type,kwargs)",
                ),
                *members(f"{GX}.core.metric_domain_types.MetricDomainTypes", "TABLE"),
                *members(f"{GX}.core.metric_function_types.MetricPartialFunctionTypes", "AGGREGATE_FN"),
                *members(
                    f"{GX}.execution_engine.SparkDFExecutionEngine",
                    "get_compute_domain(domain_kwargs,domain_type,accessor_keys)",
                    "spark",
                ),
            ),
            "plain pages": (
                *members(
                    f"{GX}.render.view.DefaultJinjaPageView",
                    f"{NEW}(custom_styles_directory,custom_views_directory)",
                    "env",
                    "render_content_block(jinja_context,content_block,index,content_block_id,render_to_markdown)",
                ),
                *members(f"{GX}.render.renderer.site_builder.DefaultSiteIndexBuilder", CLASS),
                *members(f"{GX}.data_context.AbstractDataContext", "variables"),
                *members(f"{GX}.data_context.data_context_variables.DataContextVariables", "data_docs_sites"),
            ),
            "a terminal without bars": (
                *members(f"{GX}.data_context.data_context_variables.DataContextVariables", "progress_bars"),
                *members(
                    f"{GX}.data_context.types.base.ProgressBarsConfig", f"{NEW}(globally,metric_calculations)"
                ),
            ),
            "the results of a time": (
                *members(f"{GX}.data_context.AbstractDataContext", "validation_results_store"),
                *members(
                    f"{GX}.data_context.store.validation_results_store.ValidationResultsStore", "list_keys()"
                ),
                *members(
                    f"{GX}.data_context.types.resource_identifiers.ValidationResultIdentifier",
                    "expectation_suite_identifier",
                    "run_id",
                ),
            ),
        },
    ),
)
"""Every library of which we use undocumented members, except Spark, py4j and Delta."""
