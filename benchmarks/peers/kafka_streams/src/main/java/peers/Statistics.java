package peers;

/** Count, sum, least and greatest of some values; both ends are 0 of none. */
public record Statistics(long count, double sum, double min, double max) {
  static final Statistics NONE = new Statistics(0, 0, 0, 0);

  Statistics with(double value) {
    return count == 0
        ? new Statistics(1, value, value, value)
        : new Statistics(count + 1, sum + value, Math.min(min, value), Math.max(max, value));
  }
}
