// What the page asks of its server, and what goes wrong between them, in sentences.

/** Where the page is, without what an address may carry of name and password: fetch refuses those. */
const HOME = location.origin + location.pathname.replace(/[^/]*$/, "");
/** Bytes of a page of errors that are looked at. */
const ERROR_CHARS_MAX = 4096;
/** Statuses by which proxies answer in the place of the server. */
const PROXY_ANSWERS = {
  401: "it asks for a name and a password",
  403: "it does not allow this",
  404: "it does not know this address",
  408: "the request took too long to reach it",
  413: "the conversation is larger than it lets through",
  429: "too many requests",
  502: "it does not reach the server",
  503: "the server is not available",
  504: "the server took longer than it waits",
};

/** A problem that is shown to whoever reads the page. */
class Told extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function headers() {
  const made = { "content-type": "application/json" };
  if ($("key").value) made.authorization = "Bearer " + $("key").value;
  return made;
}

/** The answer to a request to a path of the server; throws a sentence where there is none. */
async function ask(path, body, signal) {
  const options = { method: body ? "POST" : "GET", headers: headers(), body, signal };
  let response;
  try {
    response = await fetch(HOME + path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Told(navigator.onLine
      ? "The server does not answer: it has stopped, or the network between is down."
      : "This device is offline.");
  }
  if (!response.ok) throw new Told(await complaint(response), response.status);
  return response;
}

/** The sentence of an answer that is an error. */
async function complaint(response) {
  const text = (await response.text().catch(() => "")).slice(0, ERROR_CHARS_MAX);
  try {
    const { error } = JSON.parse(text);
    const message = error.message ?? error;
    if (response.status === 401) {
      return "This server asks for an API key: type it under Settings. It says: " + message;
    }
    if (typeof message === "string") return message;
  } catch {
    // No error of this server.
  }
  return proxySentence(response, text);
}

function proxySentence(response, text) {
  const html = /html/.test(response.headers.get("content-type") ?? "");
  const title = html ? /<title[^>]*>([^<]*)/i.exec(text)?.[1] : text.split("\n")[0].slice(0, 200);
  const words = (title ?? "").replace(/^\s*\d{3}\s*[-:]?\s*/, "").trim() || response.statusText;
  const known = PROXY_ANSWERS[response.status];
  const what = [words, known].filter(Boolean).join(": ") || "without a reason";
  return `The proxy answered ${response.status}: ${what}.`;
}

/**
 * Follows a stream of events: `take` gets each one, `note` each comment between them. False if it
 * broke off before its end.
 */
async function follow(response, take, note) {
  if (!/event-stream/.test(response.headers.get("content-type") ?? "")) {
    const text = (await response.text()).slice(0, ERROR_CHARS_MAX);
    throw new Told(proxySentence(response, text));
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return false;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") return true;
      if (part.startsWith("data: ")) take(JSON.parse(part.slice(6)));
      else if (part.startsWith(": ")) note(part.slice(2));
    }
  }
}
