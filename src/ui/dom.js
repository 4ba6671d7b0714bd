// Elements of the page, and what is said to those who do not see it.

const $ = (id) => document.getElementById(id);

/** A new element at the end of `parent`, of a class and with a text where they are given. */
function element(parent, tag, kind, text) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

/** A button at the end of `parent`: the word on it, and of what it is a button. */
function button(parent, word, what, act) {
  const made = element(parent, "button", "", word);
  made.type = "button";
  if (what) made.setAttribute("aria-label", word + " " + what);
  made.onclick = act;
  return made;
}

/** Has Enter in a field send it; with Shift it breaks the line. */
function sendsByEnter(field, act) {
  field.onkeydown = (event) => {
    // The key that confirms a choice of an input method has the code 229 where isComposing has ended.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    act();
  };
}

/** Tells a screen reader what has happened. */
function say(text) {
  $("said").textContent = text;
}

/** Puts `text` on the clipboard; without TLS a page has the older way alone. */
async function copy(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
  } else {
    const before = document.activeElement;
    const field = element(document.body, "textarea", "hidden");
    field.value = text;
    field.select();
    document.execCommand("copy");
    field.remove();
    before?.focus();
  }
  say("Copied.");
}

/**
 * Work that is asked for often and done as often as it is cheap: at most once a frame, and for at
 * most a fifth of the time, so that its cost grows with what it shows and not with its square.
 */
class Pace {
  static FRAME_MS = 16;
  static REST = 4;

  constructor(work) {
    this.work = work;
    this.rest = 0;
    this.timer = null;
  }

  ask() {
    this.timer ??= setTimeout(() => this.now(), Math.max(Pace.FRAME_MS, this.rest));
  }

  now() {
    clearTimeout(this.timer);
    this.timer = null;
    const begun = performance.now();
    this.work();
    this.rest = (performance.now() - begun) * Pace.REST;
  }
}
