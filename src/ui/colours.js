// Colours of code: comments, texts, numbers and words of most languages, by one pattern for all.

/** Languages whose comments begin with a number sign, and those whose begin with two dashes. */
const NUMBER_SIGN = /^(py|python|sh|bash|zsh|shell|console|rb|ruby|ya?ml|toml|ini|make|makefile|dockerfile|perl|r)$/i;
const DASHES = /^(sql|lua|haskell|hs)$/i;
/** Languages without any of that. */
const NO_CODE = /^(|text|txt|plain|plaintext|markdown|md|diff|html|xml|csv|log|output)$/i;
/** Longer code keeps one colour. */
const COLOURED_CHARS_MAX = 50000;

const WORDS = ("and as assert async await break case catch class const continue def default del do elif "
  + "else enum except export extends false False finally fn for from func function global if impl "
  + "import in interface is lambda let loop match mod mut new nil None not null or pass pub public "
  + "private raise return self static struct super switch this throw trait true True try type "
  + "undefined union use var void while with yield "
  + "SELECT FROM WHERE JOIN ON GROUP ORDER BY INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE").split(" ");
const KEYWORDS = new Set(WORDS);

/**
 * A pattern of what has a colour; each group is named as the class of its elements. What is not
 * closed ends with its line or with the text, so that no position is looked at again and again.
 */
function coloured(language) {
  const sign = NUMBER_SIGN.test(language) ? "#" : DASHES.test(language) ? "--" : "//";
  const block = sign === "//" ? String.raw`|/\*[^]*?(?:\*/|$)` : "";
  // A quote may be an apostrophe or a lifetime, so that its text is short.
  const most = /^(rs|rust)$/i.test(language) ? 1 : 200;
  return new RegExp(String.raw`(?<comment>${sign}[^\n]*${block})`
    + String.raw`|(?<string>"""[^]*?(?:"""|$)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.){0,${most}}'|`
    + "`(?:[^`\\\\]|\\\\[^])*`?)"
    + String.raw`|(?<number>\b\d[\w.]*)|(?<word>[A-Za-z_]\w*)`, "g");
}

/** Appends `text` to `parent`, its parts in elements of their kind. */
function colour(parent, text, language) {
  if (NO_CODE.test(language) || text.length > COLOURED_CHARS_MAX) return parent.append(text);
  let at = 0;
  for (const { index, 0: found, groups } of text.matchAll(coloured(language))) {
    const kind = groups.word ? KEYWORDS.has(found) && "keyword"
      : Object.keys(groups).find((name) => groups[name]);
    if (!kind) continue;
    parent.append(text.slice(at, index));
    element(parent, "span", kind, found);
    at = index + found.length;
  }
  parent.append(text.slice(at));
}
