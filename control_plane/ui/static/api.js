// Requests to the control plane's API. The session's cookie is sent by the browser; the header proves that this page
// sent the request, and not a page of another origin.

const HEADERS = { "x-penstock-ui": "1" };

/** A response with an error status; `message` is the detail that the API states, `problem` the whole body. */
export class ApiError extends Error {
  constructor(status, detail, problem = null) {
    super(detail);
    this.status = status;
    this.problem = problem;
  }
}

async function request(method, path, { body, headers = {}, signal } = {}) {
  const response = await fetch(path, {
    method,
    headers: { ...HEADERS, ...headers, ...(body === undefined ? {} : { "content-type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
    credentials: "same-origin",
    cache: "no-store",
    signal,
  });
  const text = await response.text();
  const isJson = (response.headers.get("content-type") ?? "").includes("json");
  const content = isJson && text ? JSON.parse(text) : null;
  if (!response.ok) throw new ApiError(response.status, content?.detail ?? `${response.status} ${response.statusText}`, content);
  return { content, etag: response.headers.get("etag") };
}

export const get = async (path, options) => (await request("GET", path, options)).content;
export const getWithEtag = (path) => request("GET", path);
export const post = async (path, body, headers) => (await request("POST", path, { body, headers })).content;
export const remove = async (path, body, headers) => (await request("DELETE", path, { body, headers })).content;

/** Begins a session with an API key or token. The key is sent once and not kept. */
export async function signIn(credential) {
  await request("POST", "/v1/session", { headers: { authorization: `Bearer ${credential}` } });
}

export async function signOut() {
  await request("DELETE", "/v1/session");
}

/** Without anything received for so long (ms), a stream counts as lost; the status comes every second. */
const SILENCE_MS = 4000;

/**
 * Follows the fleet until `signal` is aborted; resumes after a lost connection. `on` has handlers: `event` of each event,
 * `status` of each update of the status (see live.js), `lost` with the error of each failed attempt, which returns whether to try again.
 * EventSource cannot send headers, so the stream is read by fetch (format: WHATWG HTML, server-sent events).
 */
export async function follow(on, signal) {
  // Before every event that is stored: the stream begins with `missed`, which has no kind, and then with what is kept.
  let last = "0-0";
  for (let failures = 0; !signal.aborted; ) {
    const silence = new AbortController();
    let updates = 0;
    let timer = setTimeout(() => silence.abort(), SILENCE_MS);
    try {
      const headers = { ...HEADERS, accept: "text/event-stream", "last-event-id": last };
      const response = await fetch("/v1/events?status=true",
        { headers, credentials: "same-origin", signal: AbortSignal.any([signal, silence.signal]) });
      if (!response.ok) throw new ApiError(response.status, (await response.json().catch(() => null))?.detail ?? response.statusText);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ; ) {
        const { value, done } = await reader.read();
        if (done) break;
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENCE_MS);
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) {
          const { event, data, id } = parse(part);
          if (event === "status") (on.status(data, updates === 0), (updates += 1));
          else if (data?.kind) on.event(data);
          last = id ?? last;
        }
      }
      failures = updates ? 0 : failures + 1;
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
      if (!on.lost(error)) return;
    } finally {
      clearTimeout(timer);
    }
    // A stream that ended as announced is opened again at once.
    if (failures) await pause(Math.min(3000, 250 * 2 ** failures) * (0.5 + Math.random() / 2), signal);
  }
}

function parse(part) {
  const fields = { data: [] };
  for (const line of part.split("\n")) {
    const [, name, value] = /^([a-z]*): ?(.*)$/.exec(line) ?? [];
    if (name === "data") fields.data.push(value);
    else if (name) fields[name] = value;
  }
  return { ...fields, data: fields.data.length ? JSON.parse(fields.data.join("\n")) : null };
}

export function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
