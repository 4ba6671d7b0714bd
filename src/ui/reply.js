// One reply as it is generated: its turn of the conversation, and the figures of it.

/** How often a reply is kept while it is written, so that a page that ends loses little. */
const KEEP_EVERY_MS = 1000;

/** Time from the first token on that a rate is reported: tokens may come together. */
const RATE_FROM_MS = 10;

class Reply {
  /** `undo` takes back what was done to the conversation for it, and says so. */
  constructor(conversation, undo) {
    this.conversation = conversation;
    this.undo = undo;
    this.abort = new AbortController();
    this.turn = { role: "assistant", text: "", thought: "", calls: [], live: this };
    this.begun = performance.now();
    this.stage = "sent";
  }

  /** Follows the reply to its end; the sentence that tells what went wrong, or null. */
  async run(body) {
    const tick = setInterval(() => this.tick(), KEEP_EVERY_MS);
    try {
      const response = await ask("v1/chat/completions", body, this.abort.signal);
      const whole = await follow(response, (chunk) => this.take(chunk), (text) => this.note(text));
      return whole ? null : "The connection broke off before the reply ended.";
    } catch (error) {
      if (error.name === "AbortError") return "Stopped.";
      if (error instanceof Told) return error.message;
      return "The connection broke off before the reply ended.";
    } finally {
      clearInterval(tick);
      this.turn.view?.pace.now();
    }
  }

  tick() {
    if (this.turn.text || this.turn.thought) save(this.conversation);
    this.turn.view?.pace.ask();
  }

  /** Comments of the stream tell of the time in which the model had no place for this reply. */
  note(text) {
    if (text.startsWith("waiting")) this.stage = "waiting";
    const waited = /^waited (\d+) ms/.exec(text);
    if (waited) this.turn.waited = Number(waited[1]);
    this.turn.view?.pace.ask();
  }

  take(chunk) {
    if (chunk.error) throw new Told(chunk.error.message);
    if (this.stage === "sent") this.stage = "reading";
    const choice = chunk.choices[0];
    if (choice) this.add(choice.delta);
    if (choice?.finish_reason) this.turn.finish = choice.finish_reason;
    if (chunk.usage) this.count(chunk.usage);
    this.turn.view?.pace.ask();
  }

  add(delta) {
    const thought = delta.reasoning_content || delta.reasoning;
    if (thought) this.turn.thought += thought;
    if (delta.content) this.turn.text += delta.content;
    for (const part of delta.tool_calls ?? []) {
      this.turn.calls[part.index] ??= { id: part.id, name: part.function.name, arguments: "" };
      this.turn.calls[part.index].arguments += part.function.arguments ?? "";
    }
  }

  /** The server counts the tokens: some of them have no text, and some texts come late. */
  count(usage) {
    const { turn } = this;
    turn.usage = { prompt: usage.prompt_tokens, completion: usage.completion_tokens };
    const tokens = usage.completion_tokens;
    if (tokens <= (turn.tokens ?? 0)) return;
    const now = performance.now();
    turn.tokens = tokens;
    if (turn.first === undefined) {
      turn.first = Math.max(now - this.begun - (turn.waited ?? 0), 0);
      this.counted = { tokens, now };
      this.stage = "writing";
    } else if (now - this.counted.now >= RATE_FROM_MS) {
      turn.rate = (tokens - this.counted.tokens) / (now - this.counted.now) * 1000;
    }
  }

  /** Whether there is anything of the reply. */
  get hasBegun() {
    return Boolean(this.turn.text || this.turn.thought || this.turn.calls.length);
  }
}

const grouped = (number) => number.toLocaleString("en");
const time = (ms) => (ms < 10000 ? Math.round(ms) + " ms" : (ms / 1000).toFixed(1) + " s");

/** What is known of a reply in figures, in words where there are none yet. */
function figures(turn, context) {
  const { live } = turn;
  if (live && turn.first === undefined) {
    const seconds = Math.floor((performance.now() - live.begun) / 1000);
    const stages = { sent: "sent", waiting: "waiting for a free place", reading: "reading the prompt" };
    return stages[live.stage] + (seconds ? ` · ${seconds} s` : " …");
  }
  const parts = [];
  if (turn.waited) parts.push("waited " + time(turn.waited));
  if (turn.first !== undefined) parts.push("first token " + time(turn.first));
  if (turn.rate !== undefined) parts.push(turn.rate.toFixed(1) + " tokens/s");
  if (turn.tokens) parts.push(grouped(turn.tokens) + (turn.tokens === 1 ? " token" : " tokens"));
  if (turn.finish === "length") parts.push(cutWords(turn, context));
  return parts.join(" · ");
}

function cutWords({ limit, tokens }, context) {
  if (limit && tokens >= limit) return `cut off at the limit: Most tokens is ${grouped(limit)}`;
  return "cut off at the limit: the context" + (context ? ` of ${grouped(context)} tokens` : "")
    + " is full";
}
