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
    if (record.value() instanceof JsonNode value) {
      JsonNode stamp = value.path("timestamp");
      if (stamp.canConvertToLong()) {
        return stamp.longValue();
      }
      if (stamp.isTextual()) {
        try {
          return OffsetDateTime.parse(stamp.textValue()).toInstant().toEpochMilli();
        } catch (DateTimeException refused) {
          return -1; // and Kafka Streams leaves the record out
        }
      }
    }
    return record.timestamp();
  }
}
