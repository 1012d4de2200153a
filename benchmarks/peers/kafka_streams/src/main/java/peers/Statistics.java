package peers;

/** Count, sum, minimum and maximum of some values, and the time of the latest; all are 0 if there are none. */
public record Statistics(long count, double sum, double min, double max, long lastEventTime) {
  static final Statistics NONE = new Statistics(0, 0, 0, 0, 0);

  Statistics with(double value, long eventTime) {
    return count == 0
        ? new Statistics(1, value, value, value, eventTime)
        : new Statistics(
            count + 1,
            sum + value,
            Math.min(min, value),
            Math.max(max, value),
            Math.max(lastEventTime, eventTime));
  }
}
