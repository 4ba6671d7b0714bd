// Markdown by lines: blocks, and a rendering of a text that is still growing.

/** Lists and quotes inside each other; deeper ones are text. */
const BLOCK_DEPTH_MAX = 10;

const FENCE = /^ *(`{3,}|~{3,})(.*)$/;
const RULE = /^ *([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ *> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +(.*)|)$/;
const UNDERLINE = /^ *(=+|-+) *$/;
const DELIMITERS = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;

const FORMULA = /^ *(\$\$|\\\[)/;
/** Longer formulas are text. */
const FORMULA_LINES_MAX = 100;

const isBlank = (line) => !/\S/.test(line);
const indentOf = (line) => line.length - line.trimStart().length;

function heading(line) {
  const found = /^ *(#{1,6})(?: |$)/.exec(line);
  if (!found) return null;
  const text = line.slice(found[0].length).trim();
  return { level: found[1].length, text: text.endsWith("#") ? text.replace(/(^| )#+$/, "") : text };
}

/** Whether a block begins with `line` that ends a paragraph before it. */
function interrupts(line) {
  const fence = FENCE.exec(line);
  if (fence && !(fence[1][0] === "`" && fence[2].includes("`"))) return true;
  if (heading(line) || RULE.test(line) || QUOTE.test(line) || FORMULA.test(line)) return true;
  const item = ITEM.exec(line);
  return Boolean(item && item[3] && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1));
}

/** The cells of a row; a bar after a backslash belongs to a cell. */
function cells(line) {
  const row = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return row.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

const isTable = (head, below) =>
  below !== undefined && head.includes("|") && DELIMITERS.test(below)
  && cells(head).length === cells(below).length;

/** The blocks of `lines`, each with the number of its first line. */
function blocks(lines, depth = 0) {
  const found = [];
  for (let at = 0; at < lines.length;) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const block = blockAt(lines, at, depth);
    block.line = at;
    found.push(block);
    at = block.end;
  }
  return found;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence && !(fence[1][0] === "`" && fence[2].includes("`"))) return fenced(lines, at, fence);
  const head = heading(line);
  if (head) return { kind: "heading", ...head, end: at + 1 };
  if (RULE.test(line)) return { kind: "rule", end: at + 1 };
  if (depth < BLOCK_DEPTH_MAX) {
    if (QUOTE.test(line)) return quote(lines, at, depth);
    const item = ITEM.exec(line);
    if (item) return list(lines, at, item, depth);
  }
  if (isTable(line, lines[at + 1])) return table(lines, at);
  return FORMULA.test(line) && apart(lines, at) || paragraph(lines, at);
}

function fenced(lines, at, fence) {
  const indent = indentOf(lines[at]);
  const sign = fence[1][0];
  let end = at + 1;
  const closes = (line) => {
    const text = line.trim();
    return text.length >= fence[1].length && text[0] === sign
      && text === sign.repeat(text.length);
  };
  while (end < lines.length && !closes(lines[end])) end += 1;
  const inside = lines.slice(at + 1, end);
  const text = inside.map((line) => line.slice(Math.min(indent, indentOf(line)))).join("\n");
  const language = fence[2].trim().split(/\s/)[0];
  const closed = end < lines.length;
  return { kind: "code", language, text, closed, end: closed ? end + 1 : end };
}

/** A formula of its own; null where its lines are a paragraph. One that is not closed yet goes on. */
function apart(lines, at) {
  const close = lines[at].trim().startsWith("$$") ? "$$" : "\\]";
  const inside = [lines[at].trim().slice(2)];
  for (let end = at + 1; end <= at + FORMULA_LINES_MAX; end += 1) {
    const source = formulaIn(inside.at(-1), close);
    if (source !== null) {
      if (source.length + close.length < inside.at(-1).trimEnd().length) return null;
      inside.push(inside.pop().slice(0, source.length));
      return { kind: "formula", source: inside.join("\n"), text: lines.slice(at, end).join("\n"), end };
    }
    if (end === lines.length) return { kind: "formula", source: "", text: lines.slice(at).join("\n"), end };
    if (isBlank(lines[end])) return null;
    inside.push(lines[end].trim());
  }
  return null;
}

function quote(lines, at, depth) {
  const inside = [];
  let end = at;
  for (; end < lines.length && !isBlank(lines[end]); end += 1) {
    const marked = QUOTE.test(lines[end]);
    if (!marked && (interrupts(lines[end]) || isBlank(inside.at(-1)))) break;
    inside.push(lines[end].replace(QUOTE, ""));
  }
  return { kind: "quote", blocks: blocks(inside, depth + 1), end };
}

function list(lines, at, first, depth) {
  const ordered = /\d/.test(first[2]);
  const sign = first[2].at(-1);
  const items = [];
  let [end, loose, blank] = [at, false, false];
  let [content, marker] = [0, 0];
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (isBlank(line)) {
      blank = true;
      items.at(-1).push("");
      continue;
    }
    const indent = indentOf(line);
    const item = ITEM.exec(line);
    const nested = items.length > 0 && indent >= Math.min(content, marker + 2);
    if (nested) {
      items.at(-1).push(line.slice(Math.min(indent, content)));
    } else if (item && item[2].at(-1) === sign && !RULE.test(line)) {
      marker = indent;
      content = indent + item[2].length + 1;
      items.push([item[3] ?? ""]);
    } else if (blank || interrupts(line)) {
      break;
    } else {
      items.at(-1).push(line.trimStart());
    }
    loose ||= blank;
    blank = false;
  }
  return {
    kind: "list", ordered, loose, start: parseInt(first[2], 10), end,
    items: items.map((inside) => blocks(inside, depth + 1)),
  };
}

function table(lines, at) {
  const head = cells(lines[at]);
  const sides = cells(lines[at + 1]).map((cell) =>
    !cell.endsWith(":") ? "" : cell.startsWith(":") ? "center" : "right");
  const rows = [];
  let end = at + 2;
  for (; end < lines.length && !isBlank(lines[end]) && !interrupts(lines[end]); end += 1) {
    rows.push(cells(lines[end]));
  }
  return { kind: "table", head, sides, rows, end };
}

function paragraph(lines, at) {
  const text = [lines[at].trim()];
  let end = at + 1;
  for (; end < lines.length && !isBlank(lines[end]); end += 1) {
    const line = lines[end];
    const under = UNDERLINE.exec(line);
    if (under) {
      const level = under[1][0] === "=" ? 1 : 2;
      return { kind: "heading", level, text: text.join("\n"), end: end + 1 };
    }
    if (interrupts(line) || isTable(line, lines[end + 1])) break;
    // Two spaces at the end of a line say nothing more: each end of a line is shown.
    text.push(line.trim());
  }
  return { kind: "paragraph", text: text.join("\n"), end };
}

/**
 * The element of a heading: the page's own are h1 and h2, and no level is left out. `levels` are
 * those of the headings that this one is under.
 */
function headingTag(level, levels) {
  while (levels.length && levels.at(-1) >= level) levels.pop();
  levels.push(level);
  return "h" + Math.min(2 + levels.length, 6);
}

/** Appends what a block says to `parent`. */
function draw(parent, block, levels) {
  switch (block.kind) {
    case "heading": return written(parent, headingTag(block.level, levels), block.text);
    case "rule": return element(parent, "hr");
    case "code": return drawCode(parent, block);
    case "formula": return drawFormula(parent, block);
    case "quote": {
      const made = element(parent, "blockquote");
      for (const inner of block.blocks) draw(made, inner, levels);
      return made;
    }
    case "list": return drawList(parent, block, levels);
    case "table": return drawTable(parent, block);
    default: return written(parent, "p", block.text);
  }
}

/** An element with a text in a line, in the text's own direction. */
function written(parent, tag, text, kind) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  inline(made, text);
  // The direction is found anew for each node that joins, so it is asked for after the last.
  made.dir = "auto";
  parent.append(made);
  return made;
}

function drawCode(parent, block) {
  const made = element(parent, "div", "code");
  const bar = element(made, "div", "bar");
  element(bar, "span", "", block.language || "code");
  const code = element(element(made, "pre"), "code");
  // Code that is still written has one node, which grows.
  if (block.closed) colour(code, block.text, block.language);
  else code.append(block.text);
  code.parentElement.tabIndex = 0;
  code.dir = "ltr";
  button(bar, "Copy", "this code", () => copy(code.textContent));
  return made;
}

function drawFormula(parent, { source, text }) {
  const drawn = formula(source, true);
  const made = element(parent, "div", "formula", drawn ? undefined : text);
  made.dir = "ltr";
  if (!drawn) return made;
  made.append(drawn);
  made.tabIndex = 0;
  made.role = "group";
  made.ariaLabel = "Formula";
  return made;
}

function drawList(parent, block, levels) {
  const made = element(parent, block.ordered ? "ol" : "ul");
  if (block.ordered && block.start !== 1) made.start = block.start;
  for (const inside of block.items) {
    const item = element(made, "li");
    for (const inner of inside) {
      if (inner.kind !== "paragraph") draw(item, inner, levels);
      else if (block.loose) written(item, "p", task(inner.text));
      else inline(item, task(inner.text));
    }
    item.dir = "auto";
  }
  return made;
}

/** A box that is ticked or not, as a sign. */
const task = (text) =>
  text.replace(/^\[([ xX])\] /, (_, tick) => (tick === " " ? "\u2610 " : "\u2611 "));

function drawTable(parent, block) {
  const frame = element(parent, "div", "table");
  frame.tabIndex = 0;
  frame.role = "group";
  frame.ariaLabel = "Table";
  const made = element(frame, "table");
  const row = (part, tag, texts) => {
    const line = element(part, "tr");
    block.head.forEach((_, column) => {
      const cell = written(line, tag, texts[column] ?? "", block.sides[column]);
      if (tag === "th") cell.scope = "col";
    });
  };
  row(element(made, "thead"), "th", block.head);
  const body = element(made, "tbody");
  for (const texts of block.rows) row(body, "td", texts);
  return frame;
}

/** Whether it is whole lines, those ahead of line `last`, that say that a block begins there. */
const isDecided = ({ kind, line }, last) => line + (kind === "table" ? 1 : 0) < last;

/**
 * A text as it grows. A block is drawn once for all when whole lines have begun the next one:
 * nothing that follows can change it. What follows is drawn anew each time.
 */
class Markdown {
  constructor(box) {
    this.box = box;
    this.clear();
  }

  clear() {
    this.box.replaceChildren();
    this.settled = 0;
    this.levels = [];
    this.tail = [];
    this.shown = "";
  }

  /** Shows `text`, of which what was shown is the beginning, or another text. */
  show(text) {
    if (!text.startsWith(this.shown)) this.clear();
    this.shown = text;
    // A tab is as wide here as an item of a list is deep.
    const lines = text.slice(this.settled).split("\n");
    const found = blocks(lines.map((line) => line.replace(/^[ \t]+/, (space) =>
      space.replaceAll("\t", "    "))));
    const last = lines.length - 1;
    let count = 0;
    while (count + 1 < found.length && isDecided(found[count + 1], last)) count += 1;
    if (count > 0) this.settle(found.slice(0, count), lines, found[count].line);
    this.drawTail(found.slice(count));
  }

  settle(found, lines, line) {
    this.dropTail();
    for (const block of found) draw(this.box, block, this.levels);
    for (const passed of lines.slice(0, line)) this.settled += passed.length + 1;
  }

  dropTail() {
    for (const node of this.tail) node.remove();
    this.tail = [];
    this.open = null;
  }

  drawTail(found) {
    const [only] = found;
    // Code that is being written keeps its element, so that it can be selected and copied.
    const code = found.length === 1 && only.kind === "code" && !only.closed ? only : null;
    if (code && this.open && this.open.language === code.language
      && code.text.startsWith(this.open.text)) {
      this.open.node.appendData(code.text.slice(this.open.text.length));
      this.open.text = code.text;
      return;
    }
    this.dropTail();
    const levels = [...this.levels];
    const before = this.box.childNodes.length;
    for (const block of found) draw(this.box, block, levels);
    this.tail = [...this.box.childNodes].slice(before);
    if (code) {
      const element = this.tail[0].querySelector("code");
      this.open = { node: element.firstChild, text: code.text, language: code.language };
    }
  }
}
