package peers;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;

/** JSON to and from bytes; numbers keep every digit. */
final class Json {
  private static final ObjectMapper MAPPER =
      new ObjectMapper().enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS);

  /** Records as JSON trees; reading a value that is not JSON raises a SerializationException. */
  static final Serde<JsonNode> TREE = of(JsonNode.class);

  private Json() {}

  static <T> Serde<T> of(Class<T> type) {
    return Serdes.serdeFrom(
        (topic, value) -> {
          try {
            return value == null ? null : MAPPER.writeValueAsBytes(value);
          } catch (JsonProcessingException error) {
            throw new SerializationException(error);
          }
        },
        (topic, bytes) -> {
          try {
            return bytes == null ? null : MAPPER.readValue(bytes, type);
          } catch (IOException error) {
            throw new SerializationException(error);
          }
        });
  }
}
