// What is set for all chats, and for this one; a value that cannot be sent opens it.

/** A value of the settings that must be mended before anything is sent. */
class Mend extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/** Fields of numbers: what a request calls each, the word on it, and what it may be. */
const NUMBERS = {
  temperature: { parameter: "temperature", name: "Temperature", least: 0, most: 2 },
  length: { parameter: "max_tokens", name: "Most tokens", least: 1, whole: true },
  "top-p": { parameter: "top_p", name: "Top-p", least: 0, most: 1 },
  "top-k": { parameter: "top_k", name: "Top-k", least: 0, most: 2 ** 31 - 1, whole: true },
  "min-p": { parameter: "min_p", name: "Min-p", least: 0, most: 1 },
  // Larger whole numbers are not exact in a script.
  seed: { parameter: "seed", name: "Seed", least: 0, most: Number.MAX_SAFE_INTEGER, whole: true },
};

/** The number in a field; none where it is empty, and what must be mended where it is wrong. */
function number(field) {
  const { name, least, most = Infinity, whole } = NUMBERS[field];
  const input = $(field);
  if (input.validity.badInput) throw new Mend(field, `${name}: this is no number.`);
  if (input.value === "") return undefined;
  const value = Number(input.value);
  if (whole && !Number.isInteger(value)) throw new Mend(field, `${name}: must be a whole number.`);
  if (value < least || value > most) {
    const range = most === Infinity ? `at least ${least}` : `from ${least} to ${most}`;
    throw new Mend(field, `${name}: must be ${range}.`);
  }
  return value;
}

function tools(text) {
  if (!text.trim()) return undefined;
  try {
    const list = JSON.parse(text);
    if (Array.isArray(list)) return list.length ? list : undefined;
  } catch (error) {
    throw new Mend("tools", "Tools: this is no JSON: " + error.message);
  }
  throw new Mend("tools", "Tools: must be a list, in square brackets.");
}

/** What a request says beside its messages; throws what the user must mend. */
function parameters(conversation) {
  return {
    chat_template_kwargs: { enable_thinking: $("thinking").checked },
    ...Object.fromEntries(Object.keys(NUMBERS).map((field) =>
      [NUMBERS[field].parameter, number(field)])),
    tools: tools(conversation.tools),
  };
}

/** Says what must be mended, or that nothing must; it is checked again wherever something is typed. */
function checkSettings() {
  let mend = null;
  try {
    parameters(current);
  } catch (error) {
    if (!(error instanceof Mend)) throw error;
    mend = error;
  }
  $("wrong").textContent = mend?.message ?? "";
  for (const field of [...Object.keys(NUMBERS), "tools"]) {
    $(field).ariaInvalid = String(mend?.field === field);
  }
}

function openSettings(mend) {
  checkSettings();
  if (!$("settings").open) $("settings").showModal();
  if (mend) $(mend.field).focus();
}

/** Settings that the browser keeps. */
function keepSettings() {
  const kept = { keep: $("keep").checked };
  if (kept.keep) {
    kept.thinking = $("thinking").checked;
    for (const field of Object.keys(NUMBERS)) kept[field] = $(field).value;
  }
  remember(browser, SETTINGS, JSON.stringify(kept));
}

function recallSettings() {
  try {
    const kept = JSON.parse(recall(browser, SETTINGS) ?? "{}");
    $("keep").checked = kept.keep !== false;
    $("thinking").checked = kept.thinking !== false;
    for (const field of Object.keys(NUMBERS)) $(field).value = kept[field] ?? "";
  } catch {
    // Nobody wrote this.
  }
}
