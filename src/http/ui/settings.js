// What is set for all chats, and for this one; a value that cannot be sent opens it.

/** A value of the settings that must be mended before anything is sent. */
class Mend extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

function number(field, name, least, most, whole) {
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
    temperature: number("temperature", "Temperature", 0, 2, false),
    max_tokens: number("length", "Most tokens", 1, Infinity, true),
    tools: tools(conversation.tools),
  };
}

function openSettings(mend) {
  $("wrong").textContent = mend ? mend.message : "";
  for (const field of ["temperature", "length", "tools"]) {
    $(field).ariaInvalid = String(mend?.field === field);
  }
  if (!$("settings").open) $("settings").showModal();
  if (mend) $(mend.field).focus();
}

/** Settings that the browser keeps. */
function keepSettings() {
  const kept = { keep: $("keep").checked };
  if (kept.keep) {
    kept.thinking = $("thinking").checked;
    kept.temperature = $("temperature").value;
    kept.length = $("length").value;
  }
  remember(browser, SETTINGS, JSON.stringify(kept));
}

function recallSettings() {
  try {
    const kept = JSON.parse(recall(browser, SETTINGS) ?? "{}");
    $("keep").checked = kept.keep !== false;
    $("thinking").checked = kept.thinking !== false;
    $("temperature").value = kept.temperature ?? "";
    $("length").value = kept.length ?? "";
  } catch {
    // Nobody wrote this.
  }
}
