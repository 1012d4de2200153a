package peers;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.DateTimeException;
import java.time.OffsetDateTime;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.streams.processor.TimestampExtractor;

/** The time of an event: the record's field "timestamp", epoch milliseconds or ISO 8601, else Kafka's own. */
public final class EventTime implements TimestampExtractor {
  @Override
  public long extract(ConsumerRecord<Object, Object> record, long partitionTime) {
    return record.value() instanceof JsonNode value ? of(value, record.timestamp()) : record.timestamp();
  }

  /** Return the event's own time, or the other time if it has none; -1 skips the record. */
  static long of(JsonNode value, long otherwise) {
    JsonNode stamp = value.path("timestamp");
    if (stamp.canConvertToLong()) {
      return stamp.longValue();
    }
    if (!stamp.isTextual()) {
      return otherwise;
    }
    try {
      return OffsetDateTime.parse(stamp.textValue()).toInstant().toEpochMilli();
    } catch (DateTimeException refused) {
      return -1;
    }
  }
}
