package peers;

import java.math.BigDecimal;

/** A sum of amounts, their count, and whether the last one raised the sum to a threshold. */
public record Total(BigDecimal total, long count, boolean crosses) {
  static final Total NONE = new Total(BigDecimal.ZERO, 0, false);

  Total with(BigDecimal amount, BigDecimal threshold) {
    BigDecimal sum = total.add(amount);
    return new Total(sum, count + 1, total.compareTo(threshold) < 0 && sum.compareTo(threshold) >= 0);
  }
}
