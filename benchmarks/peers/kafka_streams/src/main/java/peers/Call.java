package peers;

import com.fasterxml.jackson.databind.JsonNode;

/** A call so far: its events, and the first payload that arrived for each side. */
public record Call(long count, JsonNode analytics, JsonNode metrics) {
  static Call of(String side, JsonNode payload) {
    return side.equals("analytics") ? new Call(1, payload, null) : new Call(1, null, payload);
  }

  Call with(Call other) {
    return new Call(
        count + other.count,
        analytics == null || analytics.isNull() ? other.analytics : analytics,
        metrics == null || metrics.isNull() ? other.metrics : metrics);
  }
}
