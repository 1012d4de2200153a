// The Spark SQL that returns the rows of a view.

/** `keys` contains strings by column, empty for any; `start` is in epoch milliseconds, or null for the beginning. */
export function sqlOf(table, keys, start, most) {
  const conditions = Object.entries(keys)
    .filter(([, value]) => value !== "")
    .map(([column, value]) => `${column} = ${quoted(value)}`);
  if (start !== null) {
    conditions.push(`${table.time} >= timestamp_millis(${start})`);
  }
  const where = conditions.length === 0 ? "" : ` WHERE ${conditions.join(" AND ")}`;
  const order = [...new Set([table.time, ...table.key])].filter(Boolean).map((column) => `${column} DESC`);
  return `SELECT * FROM gold.${table.name}${where} ORDER BY ${order.join(", ")} LIMIT ${most}`;
}

function quoted(text) {
  return `'${text.replace(/\\/g, "\\\\").replace(/'/g, "\\'")}'`;
}
