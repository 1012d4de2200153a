package peers;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.function.Consumer;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;

/**
 * Some of the four jobs as one Kafka Streams application, exactly once.
 *
 * <pre>java -cp … peers.Peer BOOTSTRAP_SERVERS STREAM[,STREAM] STATE_DIRECTORY THREADS</pre>
 *
 * It prints "running" once it is, and acknowledges the commands "pause" and "resume" on its standard
 * input. It exits at the end of the input. Records that cannot be read are silently skipped.
 */
public final class Peer {
  private static final Map<String, Consumer<StreamsBuilder>> JOBS =
      Map.of(
          "metrics", Jobs::metrics,
          "calls", Jobs::calls,
          "sales", Jobs::sales,
          "transactions", Jobs::transactions);

  private Peer() {}

  public static void main(String[] arguments) throws Exception {
    String servers = arguments[0];
    String[] names = arguments[1].split(",");
    StreamsBuilder builder = new StreamsBuilder();
    for (String name : names) {
      JOBS.get(name).accept(builder);
    }
    Properties properties = properties(servers, String.join("-", names), arguments[2], arguments[3]);
    CountDownLatch running = new CountDownLatch(1);
    try (KafkaStreams streams = new KafkaStreams(builder.build(properties), properties)) {
      streams.setStateListener(
          (state, before) -> {
            if (state == KafkaStreams.State.RUNNING) {
              running.countDown();
            } else if (state == KafkaStreams.State.ERROR) {
              System.exit(1);
            }
          });
      streams.start();
      running.await();
      System.out.println("running");
      obey(streams);
      streams.close(Duration.ofSeconds(30));
    }
  }

  private static void obey(KafkaStreams streams) throws Exception {
    var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      if (line.equals("pause")) {
        streams.pause();
      } else {
        streams.resume();
      }
      System.out.println(line);
    }
  }

  private static Properties properties(String servers, String name, String state, String threads) {
    Properties properties = new Properties();
    properties.put(StreamsConfig.APPLICATION_ID_CONFIG, "peer-" + name);
    properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
    properties.put(StreamsConfig.STATE_DIR_CONFIG, state);
    properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, threads);
    properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    properties.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
    properties.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
    properties.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.BytesSerde.class);
    properties.put(StreamsConfig.DEFAULT_TIMESTAMP_EXTRACTOR_CLASS_CONFIG, EventTime.class);
    properties.put(
        StreamsConfig.DESERIALIZATION_EXCEPTION_HANDLER_CLASS_CONFIG,
        "org.apache.kafka.streams.errors.LogAndContinueExceptionHandler");
    properties.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    return properties;
  }
}
