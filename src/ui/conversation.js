// A conversation: what was said in it, and what of that the server is sent.
//
// A turn is {role: "user", text, files} or {role: "assistant", text, thought, calls, answered, figures…}:
// the results of its calls are in the calls, and they were sent where it is answered.

const TITLE_CHARS = 60;

function newConversation(like) {
  return {
    id: crypto.getRandomValues(new Uint32Array(4)).join("-"),
    changed: Date.now(), revision: 0,
    system: like?.system ?? "", tools: like?.tools ?? "",
    draft: "", files: [], turns: [],
  };
}

/** The same as a browser keeps it: what only the page knows of it left out. */
function plainConversation({ id, changed, revision, title, system, tools, draft, files, turns }) {
  const plain = ({ live, view, ...turn }) => turn;
  return { id, changed, revision, title, system, tools, draft, files, turns: turns.map(plain) };
}

/** Whether what a file has for a conversation is one: each part of it that is used. */
function isConversation(chat) {
  const are = (kind, of, ...names) => names.every((name) => typeof of?.[name] === kind);
  const may = (kind, of, ...names) => names.every((name) => [kind, "undefined"].includes(typeof of[name]));
  const isCall = (call) => are("string", call, "id", "name", "arguments") && may("string", call, "result");
  const isReply = (turn) => turn.role === "assistant" && are("string", turn, "thought")
    && may("number", turn, "waited", "first", "rate", "tokens", "limit")
    && (turn.usage === undefined || are("number", turn.usage, "prompt", "completion"))
    && Array.isArray(turn.calls) && turn.calls.every(isCall);
  const hasFiles = ({ files }) => files === undefined
    || Array.isArray(files) && files.every((file) => are("string", file, "name", "text"));
  const isTurn = (turn) => are("string", turn, "text") && hasFiles(turn) && (turn.role === "user" || isReply(turn));
  return are("string", chat, "id", "system", "tools", "draft") && may("string", chat, "title")
    && are("number", chat, "changed", "revision") && hasFiles(chat)
    && Array.isArray(chat.turns) && chat.turns.every(isTurn);
}

function title(conversation) {
  if (conversation.title) return conversation.title.slice(0, TITLE_CHARS);
  const begun = conversation.turns.find((turn) => turn.role === "user");
  const first = begun && (begun.text || begun.files?.[0].name);
  const text = first ?? (conversation.draft.trim() && "Draft: " + conversation.draft);
  return (text || "New chat").trim().split("\n")[0].slice(0, TITLE_CHARS);
}

const isEmpty = ({ turns, draft, files }) => !turns.length && !draft.trim() && !files?.length;

/** Whether the arguments of a call are whole. */
function isWhole(call) {
  try {
    JSON.parse(call.arguments);
    return true;
  } catch {
    return false;
  }
}

/** What a turn adds to the messages of a request. */
function turnMessages(turn) {
  if (turn.role === "user") return [{ role: "user", content: contentOf(turn) }];
  const said = { role: "assistant", content: turn.text };
  if (turn.thought) said.reasoning_content = turn.thought;
  const calls = turn.calls.filter(isWhole);
  if (calls.length) {
    said.tool_calls = calls.map((call) => ({
      id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
    }));
  }
  const results = turn.answered ? calls.map((call) => ({
    role: "tool", tool_call_id: call.id, content: call.result ?? "",
  })) : [];
  return [said, ...results];
}

/** All that the server is sent of a conversation. */
function messages(conversation) {
  const system = conversation.system.trim();
  const said = conversation.turns.filter((turn) => !turn.live).flatMap(turnMessages);
  return system ? [{ role: "system", content: system }, ...said] : said;
}
