// Markdown within a line: emphasis, code, links. It makes elements and text nodes and nothing else;
// the order of delimiters is that of CommonMark 0.31 (6.2, "Emphasis and strong emphasis").

/** Elements of emphasis inside each other; deeper ones stay as they are written. */
const EMPHASIS_DEPTH_MAX = 16;
/** Schemes that a link may have. */
const LINK = /^(https?|mailto):/i;
/** Where something may begin that is no plain text. */
const SPECIAL = /[\\`*_~[\]!<&\n$]|https?:\/\//g;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: "\"", apos: "'", nbsp: "\u00a0" };
const LINK_TARGET = new RegExp(
  String.raw`\(\s*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*))` +
  String.raw`(?:\s+(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'))?\s*\)`, "y");

/** The address of a link, or null where it is none that may be followed. */
function linkAddress(text) {
  const address = text.replace(/\\([!-/:-@[-`{-~])/g, "$1");
  return LINK.test(address) && URL.canParse(address) ? address : null;
}

/** How much of an address in a text is of it: neither what ends a sentence nor a bracket around. */
function addressLength(text) {
  let surplus = text.split(")").length - text.split("(").length;
  let end = text.length;
  for (; end > 0; end -= 1) {
    const last = text[end - 1];
    if (last === ")" && surplus > 0) surplus -= 1;
    else if (!".,;:!?]".includes(last)) break;
  }
  return end;
}

function link(address) {
  const made = document.createElement("a");
  made.href = address;
  made.target = "_blank";
  made.rel = "noopener noreferrer";
  return made;
}

/** Appends what `text` says to `parent`. */
function inline(parent, text) {
  parent.append(new Inline(text).parse());
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.box = document.createDocumentFragment();
    /** Text that is no node yet. */
    this.plain = "";
    /** The last run of emphasis, which knows the one before it. */
    this.last = null;
    /** Opening brackets that may begin a link. */
    this.brackets = [];
    /** How deep emphasis goes in an element. */
    this.depths = new Map();
  }

  parse() {
    while (this.at < this.text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(this.text);
      const to = found ? found.index : this.text.length;
      this.plain += this.text.slice(this.at, to);
      this.at = to;
      if (found) this.special(found[0]);
    }
    this.flush();
    this.emphasise(null);
    return this.box;
  }

  special(found) {
    switch (found) {
      case "\\": return this.escape();
      case "`": return this.code();
      case "\n": return this.lineBreak(1);
      case "*": case "_": case "~": return this.run(found);
      case "[": return this.bracket(1);
      case "!": return this.text[this.at + 1] === "[" ? this.bracket(2) : this.take(1);
      case "]": return this.close();
      case "<": return this.angle();
      case "&": return this.entity();
      case "$": return this.dollar();
      default: return this.address();
    }
  }

  /** The next `count` characters are plain text. */
  take(count) {
    this.plain += this.text.slice(this.at, this.at + count);
    this.at += count;
  }

  flush() {
    if (this.plain) this.box.append(this.plain);
    this.plain = "";
  }

  /** A node that emphasis or a link may find again. */
  mark(text) {
    this.flush();
    const node = document.createTextNode(text);
    this.box.append(node);
    return node;
  }

  matchHere(pattern) {
    pattern.lastIndex = this.at;
    return pattern.exec(this.text);
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === "\n") return this.lineBreak(2);
    if (next === "(" && this.formula("\\(", "\\)")) return;
    if (next === "[" && this.formula("\\[", "\\]")) return;
    if (!next || !/[!-/:-@[-`{-~]/.test(next)) return this.take(1);
    this.at += 1;
    this.take(1);
  }

  /** Draws the formula that begins here, between two signs; whether there is one. */
  formula(open, close) {
    const from = this.at + open.length;
    const source = formulaIn(this.text.slice(from, from + FORMULA_CHARS_MAX + close.length), close);
    if (source === null || source.includes(open)) return false;
    const end = from + source.length + close.length;
    // One dollar is money where blanks, letters or digits stand beside it.
    const [before, after] = [this.text[this.at - 1] ?? " ", this.text[end] ?? " "];
    const isMoney = /^\s|\s$/.test(source) || /[\p{L}\p{N}]/u.test(before + after);
    const made = open === "$" && isMoney ? null : formula(source, open === "$$" || open === "\\[");
    if (!made) return false;
    this.flush();
    this.box.append(made);
    this.at = end;
    return true;
  }

  dollar() {
    const sign = this.text[this.at + 1] === "$" ? "$$" : "$";
    if (!this.formula(sign, sign)) this.take(sign.length);
  }

  lineBreak(length) {
    this.plain = this.plain.trimEnd();
    this.flush();
    this.box.append(document.createElement("br"));
    this.at += length;
    while (this.text[this.at] === " ") this.at += 1;
  }

  code() {
    const open = this.matchHere(/`+/y)[0].length;
    const end = this.runEnd(open);
    if (end === undefined) return this.take(open);
    let text = this.text.slice(this.at + open, end).replaceAll("\n", " ");
    if (/^ .*[^ ].* $/.test(text)) text = text.slice(1, -1);
    this.flush();
    const made = document.createElement("code");
    made.textContent = text;
    this.box.append(made);
    this.at = end + open;
  }

  /** Where the next run of exactly `length` backticks begins, after the one that begins here. */
  runEnd(length) {
    if (!this.runs) {
      this.runs = new Map();
      for (const run of this.text.matchAll(/`+/g)) {
        const known = this.runs.get(run[0].length);
        if (known) known.push(run.index);
        else this.runs.set(run[0].length, [run.index]);
      }
      for (const places of this.runs.values()) places.reverse();
    }
    // Looked up in the order of the text: what follows is not looked at again.
    const places = this.runs.get(length);
    while (places?.length && places.at(-1) <= this.at) places.pop();
    return places?.at(-1);
  }

  run(sign) {
    let count = 1;
    while (this.text[this.at + count] === sign) count += 1;
    if (sign === "~" ? count !== 2 : count > EMPHASIS_DEPTH_MAX) return this.take(count);
    const before = this.text[this.at - 1] ?? " ";
    const after = this.text[this.at + count] ?? " ";
    const space = (text) => /\s/.test(text);
    const left = !space(after) && (!PUNCTUATION.test(after) || space(before) || PUNCTUATION.test(before));
    const right = !space(before) && (!PUNCTUATION.test(before) || space(after) || PUNCTUATION.test(after));
    const inWord = sign === "_";
    const opens = left && (!inWord || !right || PUNCTUATION.test(before));
    const closes = right && (!inWord || !left || PUNCTUATION.test(after));
    if (!opens && !closes) return this.take(count);
    const node = this.mark(sign.repeat(count));
    const run = { node, sign, count, length: count, opens, closes, previous: this.last, next: null };
    if (this.last) this.last.next = run;
    this.last = run;
    this.at += count;
  }

  forget(run) {
    if (run.previous) run.previous.next = run.next;
    if (run.next) run.next.previous = run.previous;
    else this.last = run.previous;
  }

  /** Makes elements of the runs after `bottom`. */
  emphasise(bottom) {
    if (this.last === bottom) return;
    let closer = this.last;
    while (closer && closer.previous !== bottom) closer = closer.previous;
    const searched = new Map();
    while (closer) {
      const key = closer.sign + closer.length % 3 + closer.opens;
      const opener = closer.closes ? this.opener(closer, bottom, searched.get(key)) : null;
      if (opener) {
        closer = this.wrap(opener, closer);
        continue;
      }
      if (closer.closes) searched.set(key, closer.previous);
      const next = closer.next;
      if (!closer.opens) this.forget(closer);
      closer = next;
    }
    while (this.last && this.last !== bottom) this.forget(this.last);
  }

  /** The run that `closer` ends, after `bottom`, and after what was looked at in vain. */
  opener(closer, bottom, vain) {
    for (let run = closer.previous; run && run !== bottom && run !== vain; run = run.previous) {
      const odd = (closer.opens || run.closes) && closer.length % 3 !== 0
        && (run.length + closer.length) % 3 === 0;
      if (run.sign === closer.sign && run.opens && !odd) return run;
    }
    return null;
  }

  /** Wraps what lies between two runs; returns the run to go on with. */
  wrap(opener, closer) {
    while (closer.previous !== opener) this.forget(closer.previous);
    const count = opener.count >= 2 && closer.count >= 2 ? 2 : 1;
    const tag = opener.sign === "~" ? "del" : count === 2 ? "strong" : "em";
    const made = document.createElement(tag);
    let depth = 1;
    for (let node = opener.node.nextSibling; node !== closer.node; node = opener.node.nextSibling) {
      depth = Math.max(depth, 1 + (this.depths.get(node) ?? 0));
      made.append(node);
    }
    if (depth > EMPHASIS_DEPTH_MAX) {
      while (made.firstChild) closer.node.before(made.firstChild);
      opener.count = closer.count = 0;
    } else {
      closer.node.before(made);
      this.depths.set(made, depth);
      for (const run of [opener, closer]) {
        run.count -= count;
        run.node.data = run.sign.repeat(run.count);
      }
    }
    if (opener.count === 0) this.forget(opener);
    if (closer.count > 0) return closer;
    this.forget(closer);
    return closer.next;
  }

  bracket(length) {
    const node = this.mark(this.text.slice(this.at, this.at + length));
    this.brackets.push({ node, image: length === 2, last: this.last });
    this.at += length;
  }

  close() {
    const open = this.brackets.pop();
    this.at += 1;
    const target = open && !open.dead && this.matchHere(LINK_TARGET);
    const address = target && linkAddress(target[1] ?? target[2] ?? "");
    if (!address) {
      this.plain += "]";
      return;
    }
    this.at += target[0].length;
    this.flush();
    this.emphasise(open.last);
    const made = link(address);
    while (open.node.nextSibling) made.append(open.node.nextSibling);
    for (const inner of made.querySelectorAll("a")) inner.replaceWith(...inner.childNodes);
    // An image is not fetched: who wants to see it follows the link.
    if (open.image) made.prepend("image: ");
    if (!made.textContent) made.textContent = address;
    open.node.replaceWith(made);
    for (const outer of this.brackets) outer.dead ||= !open.image && !outer.image;
  }

  angle() {
    const found = this.matchHere(/<((?:https?|mailto):[^\s<>]+)>|<br\s*\/?>/iy);
    if (!found) return this.take(1);
    if (!found[1]) return this.lineBreak(found[0].length);
    this.follow(found[1], found[0].length);
  }

  /** An address that stands in the text. */
  address() {
    const found = this.matchHere(/https?:\/\/[^\s<>"'`*]+/y);
    const word = /[\p{L}\p{N}]/u.test(this.text[this.at - 1] ?? " ");
    if (!found || word) return this.take(4);
    const address = found[0].slice(0, addressLength(found[0]));
    this.follow(address, address.length);
  }

  follow(text, length) {
    const address = linkAddress(text);
    if (!address) return this.take(length);
    this.flush();
    const made = link(address);
    made.textContent = text;
    this.box.append(made);
    this.at += length;
  }

  entity() {
    const found = this.matchHere(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]+));/iy);
    if (!found) return this.take(1);
    const code = found[1] ? Number(found[1]) : found[2] ? parseInt(found[2], 16) : null;
    const known = code === null ? ENTITIES[found[3]] : code > 0 && code <= 0x10ffff
      ? String.fromCodePoint(code) : undefined;
    if (typeof known !== "string" || !Object.hasOwn(ENTITIES, found[3] ?? "amp")) {
      return this.take(1);
    }
    this.plain += known;
    this.at += found[0].length;
  }
}
