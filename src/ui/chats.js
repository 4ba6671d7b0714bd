// All conversations: the one that is shown, the list of them, and other tabs that show the same.

/** How long another tab has to say that it shows a conversation. */
const ANSWER_MS = 80;
/** How long another tab is believed to write a reply after it last said so. */
const ELSEWHERE_MS = 4000;
const DRAFT_AFTER_MS = 300;
/** Names of what was left to be kept, up to the conversation's. */
const LEFT = DATABASE + " left ";

let store;
let current = newConversation();
/** Conversations of this page that are whole in memory. */
const loaded = new Map();
/** What is known of all of them. */
let heads = new Map();
/** The drawer was opened before its list had anything to have the focus. */
let listIsAwaited = false;
/** When another tab last said that it writes a reply, by conversation. */
const elsewhere = new Map();
const channel = new BroadcastChannel(DATABASE);

const keepSoon = { timer: null, ask() {
  clearTimeout(this.timer);
  this.timer = setTimeout(() => save(current), DRAFT_AFTER_MS);
} };

/** Keeps a conversation as it is now, changed `when`; one without content is not kept. */
async function save(conversation, when = Date.now()) {
  if (conversation.gone) return;
  loaded.set(conversation.id, conversation);
  conversation.changed = when;
  if (isEmpty(conversation)) {
    heads.delete(conversation.id);
    if (conversation.revision) await store.remove(conversation.id);
    return drawChats();
  }
  conversation.revision += 1;
  const chat = plainConversation(conversation);
  const { id, changed, revision } = chat;
  const head = { id, changed, revision, title: title(conversation) };
  heads.set(id, head);
  drawChats();
  try {
    await store.write(head, chat);
    channel.postMessage({ saved: id, revision, live: Boolean(conversation.live) });
  } catch {
    notice(conversation, "This browser has no room for more chats: export and delete some.");
  }
}

/**
 * What the store may not take any more because the page is left: it is put where writing takes no
 * time, and into the store when a page begins.
 */
addEventListener("pagehide", () => {
  if (!store?.keeps) return;
  for (const conversation of loaded.values()) {
    if (isEmpty(conversation) || !(conversation.live || conversation === current)) continue;
    const left = plainConversation({ ...conversation, revision: conversation.revision + 1 });
    remember(browser, LEFT + conversation.id, JSON.stringify(left));
  }
});

async function keepWhatWasLeft() {
  const names = Object.keys(recallAll()).filter((name) => name.startsWith(LEFT));
  for (const name of names) {
    const left = JSON.parse(recall(browser, name));
    localStorage.removeItem(name);
    const kept = await store.read(left.id);
    if (kept && kept.revision >= left.revision) continue;
    const { id, changed, revision } = left;
    await store.write({ id, changed, revision, title: title(left) }, left);
  }
}

function sortedHeads() {
  return [...heads.values()].sort((a, b) => b.changed - a.changed);
}

/** Chats to list: those that have all words of the search in their titles. */
function soughtHeads() {
  const words = $("search").value.toLowerCase().split(/\s+/);
  return sortedHeads().filter(({ title }) =>
    words.every((word) => title.toLowerCase().includes(word)));
}

function drawChats() {
  const focused = document.activeElement?.dataset?.chat;
  $("list").replaceChildren();
  for (const head of soughtHeads()) {
    const item = element($("list"), "li");
    const live = loaded.get(head.id)?.live ? "… " : "";
    const open = button(item, live + head.title, "", () => show(head.id));
    open.dataset.chat = head.id;
    if (head.id === current.id) open.setAttribute("aria-current", "true");
    button(item, "✎", "", () => rename(head)).setAttribute("aria-label", "Rename chat " + head.title);
    button(item, "✕", "", () => removeChat(head)).setAttribute("aria-label", "Delete chat " + head.title);
    if (focused === head.id) open.focus();
  }
  if (listIsAwaited || focused && !heads.has(focused)) focusList();
  const none = heads.size ? "" : "No chats yet. ";
  $("kept").textContent = none + (store.keeps
    ? "Chats are kept in this browser, keys never."
    : "Chats are not kept: they end with this page.");
  $("export").disabled = $("delete-all").disabled = !heads.size;
}

/** Shows a conversation in the place of the one that is shown. */
function enter(conversation) {
  current = conversation;
  conversation.files ??= [];
  loaded.set(conversation.id, conversation);
  remember(tab, DATABASE, conversation.id);
  remember(browser, DATABASE, conversation.id);
  $("prompt").value = conversation.draft;
  drawFiles();
  $("system").value = conversation.system;
  $("tools").value = conversation.tools;
  drawConversation(conversation);
  refresh();
}

/** What the page says about the conversation beside its turns. */
function refresh() {
  const live = Boolean(current.live);
  $("notice").textContent = current.notice ?? "";
  $("log").classList.toggle("busy", live);
  $("send").textContent = live ? "Stop" : "Send";
  drawChats();
  countSoon();
}

async function show(id) {
  save(current);
  const conversation = loaded.get(id) ?? mended(await store.read(id));
  if (!conversation) return;
  enter(conversation);
  closeChats();
  $("prompt").focus();
  say("Chat " + title(conversation));
}

/** A conversation as it was kept; a reply whose page was left in the middle says so. */
function mended(conversation) {
  const last = conversation?.turns.at(-1);
  if (last?.role !== "assistant" || last.finish || last.problem) return conversation;
  last.problem = "The page was left before the reply ended.";
  if (last.text || last.thought || last.calls.length) return conversation;
  conversation.turns.pop();
  if (conversation.turns.at(-1)?.role === "user") {
    const { text, files } = conversation.turns.pop();
    giveBack(conversation, text, files);
  }
  return conversation;
}

function begin() {
  save(current);
  enter(newConversation(current));
  closeChats();
  $("prompt").focus();
}

function forget(id) {
  const conversation = loaded.get(id);
  if (conversation) {
    conversation.gone = true;
    conversation.live?.abort.abort();
  }
  loaded.delete(id);
  heads.delete(id);
  if (id === current.id) enter(newConversation(current));
  else drawChats();
}

/** Gives a chat another title; an empty one is that of its first message again. */
async function rename({ id, title }) {
  const named = prompt("Title of this chat", title);
  const conversation = loaded.get(id) ?? await store.read(id);
  if (named === null || !conversation) return;
  conversation.title = named.trim();
  await save(conversation, conversation.changed);
}

async function removeChat(head) {
  if (!confirm(`Delete the chat "${head.title}"?`)) return;
  forget(head.id);
  const next = $("list").querySelector("button");
  (next?.offsetParent ? next : $("clear")).focus();
  say("Deleted.");
  await store.remove(head.id);
  channel.postMessage({ removed: [head.id] });
}

async function removeAll() {
  const removed = [...heads.keys()];
  removed.forEach(forget);
  await store.clear();
  channel.postMessage({ removed });
}

/** A file with all conversations. */
async function exportAll() {
  const all = new Map((await store.all()).map((chat) => [chat.id, chat]));
  for (const [id, chat] of loaded) if (heads.has(id)) all.set(id, plainConversation(chat));
  const archive = { format: "atlas chats", version: 1, exported: new Date().toISOString(),
    chats: [...all.values()] };
  const file = URL.createObjectURL(new Blob([JSON.stringify(archive, null, 1)], { type: "application/json" }));
  const made = document.createElement("a");
  made.href = file;
  made.download = "atlas-chats.json";
  made.click();
  setTimeout(() => URL.revokeObjectURL(file), 60000);
  say("Exported.");
}

/** Chats of a file that this page has written; one that is here already is left as it is. */
async function importAll(file) {
  let archive;
  try {
    archive = JSON.parse(await file.text());
  } catch {
    // No export.
  }
  if (archive?.format !== "atlas chats" || archive.version !== 1 || !archive.chats?.every?.(isConversation)) {
    return notice(current, `${file.name} is no export of this page: choose an atlas-chats.json.`);
  }
  const added = archive.chats.filter(({ id }) => !heads.has(id)).map(plainConversation);
  for (const chat of added) await save(chat, chat.changed);
  say(`Imported: ${added.length} of ${archive.chats.length} chats; the others are here already.`);
}

/** Another tab has changed something that this one may show. */
channel.onmessage = async ({ data }) => {
  if (data.ask === current.id && !isEmpty(current)) channel.postMessage({ held: current.id });
  if (data.removed) data.removed.filter((id) => heads.has(id)).forEach(forget);
  if (!data.saved) return;
  if (data.live) elsewhere.set(data.saved, Date.now());
  else elsewhere.delete(data.saved);
  // A page that begins reads all heads when its store is open.
  if (!store) return;
  const known = loaded.get(data.saved);
  heads = new Map((await store.heads()).map((head) => [head.id, head]));
  if (known && !known.live && data.revision > known.revision) {
    const chat = await store.read(data.saved);
    if (chat) Object.assign(known, chat, known === current ? { draft: known.draft, files: known.files } : {});
    if (known === current) drawConversation(known);
  }
  refresh();
};

const isWrittenElsewhere = (id) => Date.now() - (elsewhere.get(id) ?? -Infinity) < ELSEWHERE_MS;

/** Whether another tab shows a conversation. */
function isHeld(id) {
  return new Promise((resolve) => {
    const asking = new BroadcastChannel(DATABASE);
    asking.onmessage = ({ data }) => data.held === id && resolve(true);
    asking.postMessage({ ask: id });
    setTimeout(() => {
      asking.close();
      resolve(false);
    }, ANSWER_MS);
  });
}

/** The conversation of this tab, or the last one where no other tab shows it. */
async function recallChat() {
  await keepWhatWasLeft();
  heads = new Map((await store.heads()).map((head) => [head.id, head]));
  const own = recall(tab, DATABASE);
  const last = recall(browser, DATABASE);
  const id = own ?? (last && heads.has(last) && !await isHeld(last) ? last : null);
  return (id && mended(await store.read(id))) || newConversation(await latest());
}

/** What a new chat takes its system message and its tools from. */
async function latest() {
  const [head] = sortedHeads();
  return head && store.read(head.id);
}

function toggleChats() {
  const open = $("chats").classList.toggle("open");
  $("chats-open").ariaExpanded = String(open);
  listIsAwaited = false;
  if (open) focusList();
}

/** Moves the focus into the list, now or once it has something: the store may answer later. */
function focusList() {
  const first = $("list").querySelector("button");
  listIsAwaited = !first;
  first?.focus();
}

function closeChats() {
  listIsAwaited = false;
  $("chats").classList.remove("open");
  $("chats-open").ariaExpanded = "false";
}
