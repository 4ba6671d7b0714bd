// How full the context is, and what to do before it is.

/** Share of the context from which on the page says what to do. */
const NEARLY_FULL = 0.8;
/** Characters of a draft up to which its tokens are guessed, and those of a token. */
const GUESSED_CHARS_MAX = 300;
const CHARS_OF_TOKEN = 3;
const COUNT_AFTER_MS = 500;

let countTimer = null;

/** Counts again once nothing has changed for a moment. */
function countSoon() {
  clearTimeout(countTimer);
  countTimer = setTimeout(() => count(current).catch(() => {}), COUNT_AFTER_MS);
}

/** Tokens of a conversation without its draft: reported with the last reply, or counted. */
async function countedTurns(conversation) {
  const last = conversation.turns.at(-1);
  if (!last && !conversation.system.trim()) return 0;
  if (last?.usage && !conversation.recount) return last.usage.prompt + last.usage.completion;
  const body = { messages: messages(conversation), tools: parameters(conversation).tools };
  return (await (await ask("tokenize", JSON.stringify(body))).json()).count;
}

/** All that is written of a message that was not sent. */
const draftOf = ({ draft, files }) => draft + files.map(fencedFile).join("");

async function countedDraft(text) {
  if (text.length <= GUESSED_CHARS_MAX) return Math.ceil(text.trim().length / CHARS_OF_TOKEN);
  const body = { prompt: text, add_special_tokens: false };
  return (await (await ask("tokenize", JSON.stringify(body))).json()).count;
}

async function count(conversation) {
  if (!server.context || conversation.live) return;
  const tokens = await countedTurns(conversation) + await countedDraft(draftOf(conversation));
  if (conversation !== current) return;
  showRoom(tokens);
}

function showRoom(tokens) {
  const { context } = server;
  $("gauge").max = context;
  $("gauge").value = Math.min(tokens, context);
  $("count").textContent = `${grouped(tokens)} of ${grouped(context)} tokens of context`;
  const text = advice(tokens, context);
  if ($("advice").textContent !== text) $("advice").textContent = text;
}

function advice(tokens, context) {
  if (tokens >= context) {
    return "This does not fit: shorten the message, delete turns, or begin a new chat.";
  }
  if (tokens < context * NEARLY_FULL) return "";
  const percent = Math.floor(tokens / context * 100);
  return `${percent} % full: delete turns that are not needed, or begin a new chat.`;
}
