// Formulas in TeX, drawn as MathML: what stands in answers, not all that TeX has. An element holds its
// source, which is what a copy has; a formula that cannot be read stays as it is written.

/** Name of MathML's elements. In one piece it would look like an address that is asked. */
const MATHML = "http" + "://www.w3.org/1998/Math/MathML";
/** Longer formulas stay as they are written. */
const FORMULA_CHARS_MAX = 4000;
/** Groups inside each other; a formula with deeper ones stays as it is written. */
const FORMULA_DEPTH_MAX = 40;

/** Names and the characters that they stand for, one after the other. */
const named = (text) => new Map(text.trim().split(/\s+/).map((word) => word.split("=")));

const LETTERS = named(`alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ
  vartheta=ϑ iota=ι kappa=κ lambda=λ mu=μ nu=ν xi=ξ pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ
  upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ
  Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω infty=∞ partial=∂ nabla=∇ ell=ℓ hbar=ℏ Re=ℜ Im=ℑ aleph=ℵ emptyset=∅
  varnothing=∅ imath=ı jmath=ȷ top=⊤ bot=⊥ angle=∠ degree=° circ=∘ ldots=… dots=… cdots=⋯ vdots=⋮ ddots=⋱
  %=% $=$ #=# _=_`);
const SIGNS = named(`times=× cdot=⋅ div=÷ pm=± mp=∓ ast=∗ star=⋆ bullet=∙ oplus=⊕ ominus=⊖ otimes=⊗ odot=⊙
  leq=≤ le=≤ geq=≥ ge=≥ neq=≠ ne=≠ ll=≪ gg=≫ approx=≈ equiv=≡ cong=≅ sim=∼ simeq=≃ propto=∝ prec=≺ succ=≻
  in=∈ notin=∉ ni=∋ subset=⊂ supset=⊃ subseteq=⊆ supseteq=⊇ cup=∪ cap=∩ setminus=∖ land=∧ wedge=∧ lor=∨
  vee=∨ lnot=¬ neg=¬ forall=∀ exists=∃ nexists=∄ mid=∣ parallel=∥ perp=⟂ vdash=⊢ models=⊨ to=→ gets=←
  rightarrow=→ leftarrow=← leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐ Leftrightarrow=⇔ implies=⟹ iff=⟺
  longrightarrow=⟶ mapsto=↦ uparrow=↑ downarrow=↓ hookrightarrow=↪ therefore=∴ because=∵ prime=′
  lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ langle=⟨ rangle=⟩ lvert=| rvert=| vert=| lVert=‖ rVert=‖ Vert=‖ |=‖
  lbrace={ rbrace=} {={ }=} backslash=\\ &=& colon=:`);
/** Operators over which and below which something stands in a formula of its own. */
const LARGE = named(`sum=∑ prod=∏ coprod=∐ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂ bigvee=⋁ bigwedge=⋀`);
const INTEGRALS = named("int=∫ iint=∬ iiint=∭ oint=∮");
const LIMITS = new Set("lim max min sup inf limsup liminf argmax argmin det gcd Pr".split(" "));
const FUNCTIONS = new Set(("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp "
  + "dim ker deg arg hom").split(" "));
const ACCENTS = named(`hat=^ widehat=^ bar=¯ overline=¯ vec=→ overrightarrow=→ dot=˙ ddot=¨ tilde=~
  widetilde=~ check=ˇ breve=˘ overbrace=⏞`);
const BELOW = named("underline=_ underbrace=⏟");
/** Widths of spaces in em. */
const SPACES = named(",=0.17 :=0.22 ;=0.28 !=-0.17 quad=1 qquad=2 thinspace=0.17 enspace=0.5");
/** Commands that say how large what follows is, or where its limits stand. */
const UNSAID = new Set(("displaystyle textstyle scriptstyle limits nolimits big Big bigg Bigg bigl bigr Bigl "
  + "Bigr biggl biggr Biggl Biggr bigm Bigm nonumber notag hfill").split(" "));
const UPRIGHT = new Set("mathrm operatorname mathsf mathtt rm".split(" "));
const TEXTS = new Set("text textrm textit textbf texttt textsf mbox tag".split(" "));
const BOLD = new Set("mathbf boldsymbol bm mathbfit".split(" "));
/** Alphabets of their own: where their capitals begin, and those that stand elsewhere. */
const ALPHABETS = {
  mathbb: [0x1d538, named("C=ℂ H=ℍ N=ℕ P=ℙ Q=ℚ R=ℝ Z=ℤ")],
  mathcal: [0x1d49c, named("B=ℬ E=ℰ F=ℱ H=ℋ I=ℐ L=ℒ M=ℳ R=ℛ")],
  mathfrak: [0x1d504, named("C=ℭ H=ℌ I=ℑ R=ℜ Z=ℨ")],
};
/** Environments: what stands around them. */
const TABLES = {
  matrix: ["", ""], smallmatrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"],
  vmatrix: ["|", "|"], Vmatrix: ["‖", "‖"], array: ["", ""], cases: ["{", ""], aligned: ["", ""],
  align: ["", ""], "align*": ["", ""], split: ["", ""], gathered: ["", ""], gather: ["", ""],
  "gather*": ["", ""], equation: ["", ""], "equation*": ["", ""],
};
/** Those whose columns are turned to each other, two by two. */
const ALIGNED = new Set(["aligned", "align", "align*", "split"]);

const TEX = /\\[A-Za-z]+|\\[^]|\s+|\d+(?:[.,]\d+)*|[^]/gu;

/** A formula that is not read: it stays as it is written. */
class Unread extends Error {}

/** An element of MathML with what is in it: nodes, or a text. */
function math(tag, ...inside) {
  const made = document.createElementNS(MATHML, tag);
  made.append(...inside);
  return made;
}

function marked(made, ...pairs) {
  for (const [name, value] of pairs) made.setAttribute(name, value);
  return made;
}

const sign = (text) => math("mo", text);
/** A bar as tall as a letter, and as near to what stands beside it: which side it is on is open. */
const bar = (text) => marked(sign(text), ["stretchy", "false"], ["lspace", "0"], ["rspace", "0"]);
/** What stands around something and grows with it. */
const fence = (text) => marked(sign(text), ["stretchy", "true"], ["fence", "true"]);

class Tex {
  constructor(text) {
    this.tokens = text.match(TEX) ?? [];
    this.at = 0;
    this.depth = 0;
  }

  get next() {
    return this.tokens[this.at];
  }

  skipSpace() {
    while (/^\s/.test(this.next ?? "")) this.at += 1;
  }

  take() {
    this.skipSpace();
    if (this.at >= this.tokens.length) throw new Unread();
    return this.tokens[this.at++];
  }

  expect(token) {
    if (this.take() !== token) throw new Unread();
  }

  /** The whole of it, which may have rows. */
  whole() {
    const rows = this.rows((token) => token === undefined);
    return rows.length > 1 || rows[0].length > 1 ? this.table(rows, "aligned") : rows[0][0];
  }

  /** Rows of cells up to a token that `ends` them. */
  rows(ends) {
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(this.row((token) => token === "&" || token === "\\\\" || ends(token)));
      if (ends(this.next)) break;
      if (this.take() === "\\\\") rows.push([]);
    }
    // What a last line break would begin.
    if (rows.length > 1 && rows.at(-1).length === 1 && !rows.at(-1)[0].childNodes.length) rows.pop();
    return rows;
  }

  /** What stands in a line up to a token that `stops` it, which is left. */
  row(stops) {
    const made = math("mrow");
    for (;;) {
      this.skipSpace();
      if (stops(this.next)) return made;
      const atom = this.atom(this.take());
      if (atom) made.append(this.scripts(atom));
    }
  }

  /** A group in braces, or what one token stands for. */
  argument() {
    const token = this.take();
    if (/^\d\d/.test(token)) {
      // Without braces it is one digit.
      this.tokens[--this.at] = token.slice(1);
      return math("mn", token[0]);
    }
    return this.atom(token) ?? math("mrow");
  }

  group(close) {
    const made = this.row((token) => token === close);
    this.at += 1;
    return made.childNodes.length === 1 ? made.firstChild : made;
  }

  /** The text of a group as it is written. */
  raw() {
    this.expect("{");
    let text = "";
    for (let open = 1; ; text += this.tokens[this.at++]) {
      if (this.next === undefined) throw new Unread();
      open += (this.next === "{") - (this.next === "}");
      if (!open) break;
    }
    this.at += 1;
    // Blanks at an end would be lost.
    return text.replace(/\\([%$#&_{} ])/g, "$1").replace(/[\s~]/g, "\u00a0");
  }

  atom(token) {
    if ((this.depth += 1) > FORMULA_DEPTH_MAX) throw new Unread();
    const made = this.atomOf(token);
    this.depth -= 1;
    return made;
  }

  atomOf(token) {
    if (token === "{") return this.group("}");
    if (token === "}" || token === "&" || token === "\\\\") throw new Unread();
    if (token === "^" || token === "_" || token === "'") {
      // It belongs to nothing.
      this.at -= 1;
      return math("mrow");
    }
    if (token === "~") return marked(math("mspace"), ["width", "0.33em"]);
    if (token[0] === "\\") return this.command(token.slice(1));
    if (/^\d/.test(token)) return math("mn", token);
    if (/^\p{L}/u.test(token)) return math("mi", token);
    if (token === "|") return bar("|");
    const made = sign(token === "-" ? "\u2212" : token);
    return "()[]/".includes(token) ? marked(made, ["stretchy", "false"]) : made;
  }

  command(name) {
    if (LETTERS.has(name)) return math("mi", LETTERS.get(name));
    if (/^[lr]?[vV]ert$|^\|$/.test(name)) return bar(SIGNS.get(name));
    if (SIGNS.has(name)) return marked(sign(SIGNS.get(name)), ["stretchy", "false"]);
    if (LARGE.has(name)) return sign(LARGE.get(name));
    if (INTEGRALS.has(name)) return sign(INTEGRALS.get(name));
    if (LIMITS.has(name)) return marked(sign(name), ["movablelimits", "true"]);
    if (FUNCTIONS.has(name)) return math("mrow", math("mi", name), sign("\u2061"));
    if (SPACES.has(name)) return marked(math("mspace"), ["width", SPACES.get(name) + "em"]);
    if (/^\s/.test(name)) return marked(math("mspace"), ["width", "0.33em"]);
    if (UNSAID.has(name)) return null;
    if (name === "operatorname" && this.next === "*") this.at += 1;
    if (UPRIGHT.has(name)) return marked(math("mi", this.raw()), ["mathvariant", "normal"]);
    if (TEXTS.has(name)) return math("mtext", name === "tag" ? `\u2003(${this.raw()})` : this.raw());
    if (BOLD.has(name)) return marked(math("mrow", this.argument()), ["class", "bold"]);
    if (Object.hasOwn(ALPHABETS, name)) return this.alphabet(ALPHABETS[name]);
    if (ACCENTS.has(name)) return this.accent("mover", ACCENTS.get(name));
    if (BELOW.has(name)) return this.accent("munder", BELOW.get(name));
    return this.structure(name);
  }

  structure(name) {
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac":
        return math("mfrac", this.argument(), this.argument());
      case "binom": case "dbinom": {
        const parts = marked(math("mfrac", this.argument(), this.argument()), ["linethickness", "0"]);
        return math("mrow", fence("("), parts, fence(")"));
      }
      case "sqrt": return this.root();
      case "left": return this.between();
      case "begin": return this.environment();
      case "overset": case "stackrel": {
        const over = this.argument();
        return math("mover", this.argument(), over);
      }
      case "underset": {
        const under = this.argument();
        return math("munder", this.argument(), under);
      }
      case "pmod": return math("mrow", sign("("), math("mi", "mod"), this.argument(), sign(")"));
      case "bmod": return sign("mod");
      case "right": case "end": case "middle": throw new Unread();
      default: return math("mtext", "\\" + name);
    }
  }

  root() {
    this.skipSpace();
    if (this.next !== "[") return math("msqrt", this.argument());
    this.at += 1;
    const degree = this.group("]");
    return math("mroot", this.argument(), degree);
  }

  accent(tag, text) {
    const made = math(tag, this.argument(), marked(sign(text), ["stretchy", "true"]));
    return marked(made, [tag === "mover" ? "accent" : "accentunder", "true"]);
  }

  alphabet([first, elsewhere]) {
    const text = this.raw();
    return math("mi", text.replace(/[A-Z]/g, (letter) => elsewhere.get(letter)
      ?? String.fromCodePoint(first + letter.charCodeAt(0) - 65)));
  }

  /** What stands around something: a sign, or nothing. */
  delimiter() {
    const token = this.take();
    if (token === ".") return "";
    const text = token[0] === "\\" ? SIGNS.get(token.slice(1)) : token;
    if (!text) throw new Unread();
    return text;
  }

  between() {
    const made = math("mrow", fence(this.delimiter()));
    for (;;) {
      made.append(this.row((token) => token === "\\right" || token === "\\middle"));
      const ends = this.take() === "\\right";
      made.append(fence(this.delimiter()));
      if (ends) return made;
    }
  }

  environment() {
    const name = this.raw();
    if (!Object.hasOwn(TABLES, name)) throw new Unread();
    if (name === "array") this.raw();
    const rows = this.rows((token) => token === "\\end");
    this.at += 1;
    if (this.raw() !== name) throw new Unread();
    const [open, close] = TABLES[name];
    const table = this.table(rows, name);
    return open || close ? math("mrow", fence(open), table, ...(close ? [fence(close)] : [])) : table;
  }

  table(rows, name) {
    const side = (column) => ALIGNED.has(name) ? (column % 2 ? "left" : "right") : name === "cases" ? "left" : "";
    const cell = (inside, column) => marked(math("mtd", inside), ...(side(column) ? [["class", side(column)]] : []));
    const table = math("mtable", ...rows.map((cells) => math("mtr", ...cells.map(cell))));
    return ALIGNED.has(name) ? marked(table, ["displaystyle", "true"]) : table;
  }

  /** Puts what follows `_`, `^` and primes at a base. */
  scripts(base) {
    let [under, over, primes] = [null, null, ""];
    for (;;) {
      this.skipSpace();
      const { next } = this;
      if (next === "'") primes += "\u2032";
      else if (next === "_" ? under : next === "^" ? over : !/^\\(no)?limits$/.test(next)) break;
      this.at += 1;
      if (next === "_") under = this.argument();
      if (next === "^") over = this.argument();
    }
    if (primes) over = over ? math("mrow", sign(primes), over) : sign(primes);
    if (!under && !over) return base;
    const large = base.localName === "mo" && (base.hasAttribute("movablelimits")
      || [...LARGE.values()].includes(base.textContent));
    const braced = ["⏞", "⏟"].includes(base.lastChild?.textContent);
    const [one, other, both] = large || braced ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    if (under && over) return math(both, base, under, over);
    return under ? math(one, base, under) : math(other, base, over);
  }
}

/** The element of a formula, in a line or on its own; null where it is not read. */
function formula(source, isApart) {
  if (!source.trim() || source.length > FORMULA_CHARS_MAX) return null;
  try {
    const written = marked(math("annotation", source), ["encoding", "application/x-tex"]);
    const made = math("math", math("semantics", new Tex(source).whole(), written));
    return isApart ? marked(made, ["display", "block"]) : made;
  } catch (error) {
    if (error instanceof Unread) return null;
    throw error;
  }
}

/** What stands in `text` up to `close`, which no backslash escapes; null where it is not closed. */
function formulaIn(text, close) {
  let end = text.indexOf(close);
  while (close[0] === "$" && end > 0 && text[end - 1] === "\\") end = text.indexOf(close, end + 1);
  return end < 0 ? null : text.slice(0, end);
}

/** Gives a copy of what is selected the sources of its formulas, as a picture of them says little. */
document.addEventListener("copy", (event) => {
  const selection = getSelection();
  const part = selection.rangeCount ? selection.getRangeAt(0).cloneContents() : null;
  if (!part?.querySelector("math")) return;
  const box = element(document.body, "div", "hidden");
  box.append(part);
  for (const made of box.querySelectorAll("math")) {
    const signs = made.getAttribute("display") ? "$$" : "$";
    made.replaceWith(signs + (made.querySelector("annotation")?.textContent ?? made.textContent) + signs);
  }
  event.clipboardData.setData("text/plain", box.innerText);
  event.preventDefault();
  box.remove();
});
