package peers;

import com.fasterxml.jackson.databind.JsonNode;
import java.math.BigDecimal;
import java.time.Duration;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/**
 * The topologies of the four jobs, as one would write them by hand.
 *
 * <p>Each output record's key identifies its row, including the start of its window or call if there is one. The last
 * record for a key contains the row's current state.
 */
final class Jobs {
  private static final Duration GRACE = Duration.ofDays(400); // less loses events of a backlog of months
  private static final Duration CALL_GAP = Duration.ofSeconds(60);
  private static final BigDecimal THRESHOLD = BigDecimal.valueOf(2000);

  private Jobs() {}

  /** Statistics per minute by service and metric, and per ten minutes by environment and metric. */
  static void metrics(StreamsBuilder builder) {
    KStream<String, JsonNode> events =
        read(builder, "metrics-events")
            .filter(
                (key, value) ->
                    isName(value, "serviceId") && isName(value, "metricName") && value.path("value").isNumber());
    statistics(
        events.selectKey((key, value) -> text(value, "serviceId") + ":" + text(value, "metricName")),
        Duration.ofMinutes(1),
        "peer-metrics-1m");
    statistics(
        events.selectKey(
            (key, value) -> value.path("environment").asText("default") + ":" + text(value, "metricName")),
        Duration.ofMinutes(10),
        "peer-metrics-10m");
  }

  private static void statistics(KStream<String, JsonNode> events, Duration length, String topic) {
    Serde<Statistics> serde = Json.of(Statistics.class);
    events
        .groupByKey(Grouped.with(topic, Serdes.String(), Json.TREE))
        .windowedBy(TimeWindows.ofSizeAndGrace(length, GRACE))
        .aggregate(
            () -> Statistics.NONE,
            (key, value, before) ->
                before.with(value.path("value").doubleValue(), EventTime.of(value, before.lastEventTime())),
            Materialized.<String, Statistics, WindowStore<Bytes, byte[]>>as(topic)
                .withKeySerde(Serdes.String())
                .withValueSerde(serde)
                .withRetention(GRACE.plus(length)))
        .toStream((window, value) -> window.key() + ":" + window.window().start())
        .to(topic, Produced.with(Serdes.String(), serde));
  }

  /** Calls: the events of a pair, from either topic, that are at most the gap apart. */
  static void calls(StreamsBuilder builder) {
    Serde<Call> serde = Json.of(Call.class);
    KStream<String, Call> analytics = side(builder, "analyticsTopic", "analytics");
    analytics
        .merge(side(builder, "metricsTopic", "metrics"))
        .groupByKey(Grouped.with("peer-calls", Serdes.String(), serde))
        .windowedBy(SessionWindows.ofInactivityGapAndGrace(CALL_GAP, GRACE))
        .reduce(
            Call::with,
            Materialized.<String, Call, SessionStore<Bytes, byte[]>>as("peer-calls")
                .withKeySerde(Serdes.String())
                .withValueSerde(serde))
        .toStream((window, value) -> window.key() + ":" + window.window().start())
        .to("peer-calls", Produced.with(Serdes.String(), serde));
  }

  private static KStream<String, Call> side(StreamsBuilder builder, String topic, String side) {
    return read(builder, topic)
        .filter((key, value) -> isName(value, "user1") && isName(value, "user2"))
        .map(
            (key, value) ->
                KeyValue.pair(
                    text(value, "user1") + "-" + text(value, "user2"), Call.of(side, value.get(side))));
  }

  /** Each product's running total, which a tombstone resets, and notifications at the threshold. */
  static void sales(StreamsBuilder builder) {
    Serde<Total> serde = Json.of(Total.class);
    builder.addStateStore(
        Stores.keyValueStoreBuilder(
            Stores.persistentKeyValueStore("peer-sales"), Serdes.String(), serde));
    KStream<String, Total> totals =
        builder
            .stream("sales-events-v1", Consumed.with(Serdes.String(), Json.TREE))
            .process(RunningTotal::new, "peer-sales");
    totals.to("peer-sales", Produced.with(Serdes.String(), serde));
    totals
        .filter((product, total) -> total.crosses())
        .to("peer-notifications", Produced.with(Serdes.String(), serde));
  }

  private static final class RunningTotal extends ContextualProcessor<String, JsonNode, String, Total> {
    private KeyValueStore<String, Total> totals;

    @Override
    public void init(ProcessorContext<String, Total> context) {
      super.init(context);
      totals = context.getStateStore("peer-sales");
    }

    @Override
    public void process(Record<String, JsonNode> record) {
      JsonNode value = record.value();
      if (value == null) {
        totals.delete(record.key());
        context().forward(record.withValue(Total.NONE));
      } else if (isName(value, "product") && value.path("value").isNumber()) {
        Total before = totals.get(record.key());
        Total total = (before == null ? Total.NONE : before).with(value.path("value").decimalValue(), THRESHOLD);
        totals.put(record.key(), total);
        context().forward(record.withValue(total));
      }
    }
  }

  /** The amount that each user has spent per five minutes. */
  static void transactions(StreamsBuilder builder) {
    Serde<Total> serde = Json.of(Total.class);
    Duration length = Duration.ofMinutes(5);
    read(builder, "transactions-topic")
        .filter((key, value) -> isName(value, "userId") && value.path("amount").decimalValue().signum() > 0)
        .selectKey((key, value) -> text(value, "userId"))
        .groupByKey(Grouped.with("peer-transactions", Serdes.String(), Json.TREE))
        .windowedBy(TimeWindows.ofSizeAndGrace(length, GRACE))
        .aggregate(
            () -> Total.NONE,
            (user, value, before) -> before.with(value.path("amount").decimalValue(), THRESHOLD),
            Materialized.<String, Total, WindowStore<Bytes, byte[]>>as("peer-transactions")
                .withKeySerde(Serdes.String())
                .withValueSerde(serde)
                .withRetention(GRACE.plus(length)))
        .toStream((window, value) -> window.key() + ":" + window.window().start())
        .to("peer-transactions", Produced.with(Serdes.String(), serde));
  }

  private static KStream<String, JsonNode> read(StreamsBuilder builder, String topic) {
    return builder.stream(topic, Consumed.with(Serdes.String(), Json.TREE))
        .filter((key, value) -> value != null && value.isObject());
  }

  private static boolean isName(JsonNode value, String field) {
    return value.path(field).isTextual() && !value.path(field).textValue().isEmpty();
  }

  private static String text(JsonNode value, String field) {
    return value.path(field).textValue();
  }
}
