// What a person does on the page, and what becomes of it.

/** How often the server is asked whether it is there while it is not. */
const GREET_AGAIN_MS = 2000;
/** What is read out of a reply that has ended. */
const SPOKEN_CHARS = 500;

/** What is known of the server. */
const server = { context: 0, model: "" };
let greeting = null;

/** Looks whether the server is there, and which model it has; goes on until it is ready. */
async function greet() {
  clearTimeout(greeting);
  const state = await serverState().catch((error) => ({ text: error.message }));
  $("state").textContent = state.text;
  $("state").classList.toggle("ready", Boolean(state.ready));
  if (state.ready) countSoon();
  else if (!state.refused) greeting = setTimeout(greet, GREET_AGAIN_MS);
}

async function serverState() {
  const health = await fetch(HOME + "health", { headers: headers() }).catch(() => null);
  if (!health) await ask("health");
  const known = await health.clone().json().catch(() => null);
  if (!known?.status) return { text: await complaint(health) };
  if (known.status === "loading") return { text: `${known.stage}, ${known.percent} %` };
  if (known.status !== "ready") return { text: "the server is " + known.status };
  try {
    const [model] = (await (await ask("v1/models")).json()).data;
    const isNew = server.model !== model.id;
    Object.assign(server, { context: model.max_model_len, model: model.id });
    if (isNew && !current.turns.length) drawConversation(current);
    return { text: `${model.id}, context ${model.max_model_len}`, ready: true };
  } catch (error) {
    if (error.status !== 401) throw error;
    return { text: "this server asks for an API key: see Settings", refused: true };
  }
}

function notice(conversation, text) {
  conversation.notice = text;
  if (conversation === current) $("notice").textContent = text;
}

/** Puts a text that was not sent back to where it was typed. */
function giveBack(conversation, text, files = []) {
  conversation.draft = [text, conversation.draft].filter(Boolean).join("\n");
  conversation.files = [...files, ...conversation.files ?? []];
  if (conversation !== current) return;
  $("prompt").value = conversation.draft;
  drawFiles();
}

/** What can be sent now; null, and the reason on the page, where nothing can. */
function checked(conversation) {
  if (conversation.live) {
    notice(conversation, "A reply is being written: wait for its end, or stop it.");
    return null;
  }
  if (isWrittenElsewhere(conversation.id)) {
    notice(conversation, "Another tab writes a reply in this chat: wait for its end, or begin a new chat.");
    return null;
  }
  try {
    return parameters(conversation);
  } catch (error) {
    if (!(error instanceof Mend)) throw error;
    openSettings(error);
    return null;
  }
}

/**
 * Changes a conversation by `change` and has it answered. Where nothing of an answer comes, all is as
 * it was before, and `text` and `files` are where they were typed and chosen.
 */
async function converse(conversation, { text = "", files }, change) {
  const wanted = checked(conversation);
  if (!wanted) return false;
  const before = [...conversation.turns];
  change();
  const reply = new Reply(conversation, () => {
    conversation.turns = before;
    before.forEach((turn) => { if (!turn.sent) turn.answered = false; });
    giveBack(conversation, text, files);
    return text ? " What you wrote is back in its place." : "";
  });
  const body = JSON.stringify({
    messages: messages(conversation), ...wanted, stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  });
  reply.turn.limit = wanted.max_tokens;
  conversation.notice = "";
  conversation.recount = false;
  conversation.turns.push(reply.turn);
  conversation.live = reply;
  drawConversation(conversation);
  refresh();
  save(conversation);
  say("Atlas answers.");
  ended(reply, await reply.run(body));
  return true;
}

/** What becomes of a conversation when a reply has ended, or has not come. */
function ended(reply, problem) {
  const { conversation, turn } = reply;
  conversation.live = null;
  delete turn.live;
  if (conversation.gone) return;
  if (problem && !reply.hasBegun) {
    notice(conversation, problem + reply.undo());
  } else {
    if (problem) turn.problem = problem;
    conversation.turns.forEach((turn) => { if (turn.answered) turn.sent = true; });
  }
  if (conversation === current) finishDrawing(turn);
  save(conversation);
  refresh();
  if (problem && problem !== "Stopped.") greet();
}

function finishDrawing(turn) {
  if (!current.turns.includes(turn)) return drawConversation(current);
  following(() => turn.view?.show());
  say(turn.problem ?? "Reply: " + turn.text.slice(0, SPOKEN_CHARS));
}

async function send() {
  const conversation = current;
  const text = $("prompt").value;
  const { files } = conversation;
  $("prompt").focus();
  if (!text.trim() && !files.length) {
    return notice(conversation, conversation.live ? "" : "Type a message first.");
  }
  await converse(conversation, { text, files }, () => {
    conversation.turns.push({ role: "user", text, files });
    conversation.draft = "";
    conversation.files = [];
    $("prompt").value = "";
    drawFiles();
  });
}

function sendResults(conversation, turn) {
  converse(conversation, {}, () => { turn.answered = true; });
  $("prompt").focus();
}

/** Sends the conversation up to `turn` again, with another text in its place. */
function resend(conversation, turn, text) {
  const { files } = turn;
  if (!text.trim() && !files?.length) return say("Type a message first.");
  const at = conversation.turns.indexOf(turn);
  converse(conversation, { text }, () => {
    conversation.turns = [...conversation.turns.slice(0, at), { role: "user", text, files }];
  });
  $("prompt").focus();
}

function regenerate(conversation, turn) {
  converse(conversation, {}, () => {
    conversation.turns = conversation.turns.slice(0, conversation.turns.indexOf(turn));
  });
  $("prompt").focus();
}

/** The text of a reply is another one. */
function amend(conversation, turn, text) {
  turn.text = text;
  changed(conversation);
  turn.view.editButton.focus();
}

/** Takes a message and what answers it away, or a reply alone. */
function removeTurn(conversation, turn) {
  const at = conversation.turns.indexOf(turn);
  let end = at + 1;
  const { turns } = conversation;
  if (turn.role === "user") while (end < turns.length && turns[end].role !== "user") end += 1;
  turns.splice(at, end - at);
  changed(conversation);
  $("prompt").focus();
  say("Deleted.");
}

function changed(conversation) {
  conversation.recount = true;
  conversation.notice = "";
  drawConversation(conversation);
  refresh();
  save(conversation);
}

async function keepOrNot() {
  if ($("keep").checked) {
    keepSettings();
    for (const conversation of loaded.values()) await save(conversation);
  } else if (confirm("Delete the chats that this browser keeps? Those of this page stay on it.")) {
    await store.clear();
    heads = new Map([...heads].filter(([id]) => loaded.has(id)));
    keepSettings();
  } else {
    $("keep").checked = true;
  }
  drawChats();
}

function escape(event) {
  if (event.key !== "Escape" || $("settings").open) return;
  if (!$("chats").classList.contains("open")) return current.live?.abort.abort();
  closeChats();
  $("chats-open").focus();
}

/** Makes the page do what is pressed and typed. */
function wire() {
  wireMessage();
  wireSettings();
  wireChats();
  document.onkeydown = escape;
  for (const event of ["online", "offline", "focus"]) addEventListener(event, greet);
}

function wireMessage() {
  $("form").onsubmit = (event) => {
    event.preventDefault();
    if (!current.live) return send();
    current.live.abort.abort();
    $("prompt").focus();
  };
  sendsByEnter($("prompt"), send);
  $("attach").onclick = () => $("chosen").click();
  $("chosen").onchange = async () => {
    await attach(current, [...$("chosen").files]);
    $("chosen").value = "";
    $("prompt").focus();
  };
  // A file that is dropped elsewhere would take the place of the page.
  document.ondragover = (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  };
  document.ondrop = (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    attach(current, [...event.dataTransfer.files]);
  };
  $("prompt").oninput = () => {
    current.draft = $("prompt").value;
    keepSoon.ask();
    countSoon();
  };
}

function wireSettings() {
  for (const field of ["system", "tools"]) {
    $(field).oninput = () => {
      current[field] = $(field).value;
      current.recount = true;
      keepSoon.ask();
      countSoon();
    };
  }
  for (const field of ["thinking", ...Object.keys(NUMBERS)]) $(field).onchange = keepSettings;
  $("keep").onchange = keepOrNot;
  $("key").onchange = greet;
  $("settings-open").onclick = () => openSettings(null);
  $("fields").oninput = checkSettings;
  $("fields").onsubmit = (event) => {
    event.preventDefault();
    $("settings").close();
  };
  $("settings").onclose = () => $("prompt").focus();
}

function wireChats() {
  $("clear").onclick = begin;
  $("chats-open").onclick = toggleChats;
  $("search").oninput = drawChats;
  $("export").onclick = exportAll;
  $("import").onclick = () => $("file").click();
  $("file").onchange = async () => {
    await importAll($("file").files[0]);
    $("file").value = "";
  };
  $("delete-all").onclick = async () => {
    if (!confirm("Delete all chats?")) return;
    await removeAll();
    $("prompt").focus();
    say("Deleted.");
  };
}

async function start() {
  // Nothing can be sent yet, but what is typed is not lost.
  $("form").onsubmit = (event) => event.preventDefault();
  recallSettings();
  store = await Store.open();
  const chat = await recallChat();
  const typed = $("prompt").value;
  enter(chat);
  if (typed) giveBack(chat, typed);
  wire();
  await greet();
}
start();
