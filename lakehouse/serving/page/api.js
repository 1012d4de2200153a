// Requests to this server. Numbers in responses stay exact; errors are problem+json.

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Request a path; throws Problem. A 401 tells listeners for `token` that a token is needed. */
export async function ask(path, { method = "GET", body = null, headers = {} } = {}) {
  const options = { method, headers: { ...headers }, credentials: "same-origin", cache: "no-cache" };
  if (body !== null) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let answer;
  let text;
  try {
    answer = await fetch(path, options);
    text = await answer.text();
  } catch {
    throw new Problem(0, "the server does not answer");
  }
  if (answer.ok) {
    return text === "" ? null : parse(text);
  }
  if (answer.status === 401 && !path.endsWith("/session")) {
    dispatchEvent(new CustomEvent("token"));
  }
  throw new Problem(answer.status, detail(text) ?? `${answer.status} ${answer.statusText}`);
}

/** Request a path like `ask`, but return null if this server lacks the endpoint. */
export async function askIfThere(path) {
  try {
    return await ask(path);
  } catch (problem) {
    if (problem.status === 404) {
      return null;
    }
    throw problem;
  }
}

/** A path with its query; null and empty parameters are omitted. */
export function query(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return search === "" ? path : `${path}?${search}`;
}

let streams = null;

/** The streams' declarations, requested once. */
export async function declared() {
  streams ??= ask("/api/v1/streams").catch((problem) => {
    streams = null;
    throw problem;
  });
  return (await streams).streams;
}

/** Parse JSON; a number that a double cannot represent stays a string, if the browser supports that. */
export function parse(text) {
  return JSON.parse(text, (_key, value, context) => {
    const source = typeof value === "number" ? context?.source : undefined;
    return source === undefined || digits(source) === digits(String(value)) ? value : source;
  });
}

function digits(source) {
  return source.replace(/e.*$/i, "").replace(/[-.]/g, "").replace(/^0+|0+$/g, "");
}

function detail(text) {
  try {
    return JSON.parse(text).detail ?? null;
  } catch {
    return null;
  }
}
