"""How the chat page shows what is said: checks of `chat_page.py`."""

import json

from page_browser import ENTER, INPUT_METHOD
from page_front import breaking, chunks, saying
from page_talk import IDLE, LAST, check, say, send, texts

EXAMPLE = """# Title

Some *emphasis*, **strong**, ~~gone~~, `code` and a [link](https://example.org/a_b "title").
A second line with https://example.org/x_(y), and 2 * 3 * 4 and snake_case_name.

- one
  1. inner
  2. more
- [x] two

> quoted
> ```py
> print("in a quote")
> ```

| left | right |
|:-----|------:|
| a \\| b | **2** |

```python
def f(x):
    return "<b>" + x
```

![a picture](https://example.org/picture.png)

***
### Deeper
#### Deepest &amp; last
"""

# Selectors and how many elements each finds in the example.
SHAPES = {
    "h3": 1, "h4": 1, "h5": 1, "p em": 1, "p strong": 1, "del": 1, "p code": 1, "p br": 1,
    'a[href="https://example.org/a_b"]': 1, 'a[href="https://example.org/x_(y)"]': 1,
    'a[href="https://example.org/picture.png"]': 1, "img": 0, "ul": 1, "ul > li": 2,
    "li > ol > li": 2, "blockquote pre": 1, "table": 1, "th.right": 1, "td strong": 1, "hr": 1,
    "pre": 2, 'a[target="_blank"][rel="noopener noreferrer"]': 3,
}

INJECTIONS = [
    "<img src=x onerror='hacked = 1'>",
    "<script>hacked = 1</script>",
    "<svg onload='hacked = 1'><iframe src=\"javascript:hacked = 1\">",
    "[a](javascript:hacked=1) [b](JaVaScRiPt&#58;hacked=1) [c](java\\script:hacked=1)",
    "[d](data:text/html,<script>hacked=1</script>) <javascript:hacked=1> <vbscript:hacked>",
    "![e](https://evil.example/pixel.png) ![f](javascript:hacked=1)",
    "```\"><img src=x onerror=hacked=1>\n</code></pre><script>hacked = 1</script>\n```",
    "| <img src=x onerror=hacked=1> | b |\n|---|---|\n| <script>hacked=1</script> | c |",
    "[g](https://evil.example/\" onmouseover=\"hacked=1) <https://evil.example/\"onload=hacked>",
    "# <style>* { background: url(https://evil.example) }</style>",
    "&lt;img src=x onerror=hacked=1&gt; &#60;script&#62;hacked=1&#60;/script&#62;",
    "- <details open ontoggle=hacked=1>\n  > <form action=javascript:hacked=1><input autofocus onfocus=hacked=1>",
    r"$\text{<img src=x onerror=hacked=1>} \href{javascript:hacked=1}{<script>hacked=1</script>}$",
]

ALLOWED = """(box) => {
  const math = new Set(("math semantics annotation mrow mi mn mo mtext mspace msub msup msubsup munder mover "
    + "munderover mfrac msqrt mroot mtable mtr mtd").split(" "));
  const said = new Set("class display encoding stretchy fence form lspace rspace movablelimits mathvariant "
    .concat("width linethickness accent accentunder displaystyle").split(" "));
  const tags = new Set(("P BR EM STRONG DEL CODE PRE A UL OL LI BLOCKQUOTE TABLE THEAD TBODY TR TH TD "
    + "HR H3 H4 H5 H6 DIV SPAN BUTTON").split(" "));
  const names = new Set(("class dir href target rel start scope tabindex role aria-label type").split(" "));
  for (const one of box.querySelectorAll("*")) {
    const isMath = one.namespaceURI.endsWith("/MathML");
    if (!(isMath ? math : tags).has(one.tagName)) return one.outerHTML;
    for (const { name } of one.attributes) if (!(isMath ? said : names).has(name)) return one.outerHTML;
    if (one.href && !/^(https?|mailto):/.test(one.href)) return one.outerHTML;
  }
  return "";
}"""

FUZZ = """(async (count, allowed) => {
  let state = 7;
  const below = (limit) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor(state / 2 ** 32 * limit);
  };
  const parts = ["*", "**", "_", "__", "~~", "`", "``", "```", "~~~", "[", "](", "](https://a.b)", "]",
    "(", ")", "!", "![", "<", ">", "> ", "- ", "+ ", "1. ", "2) ", "  ", "    ", "\\n", "\\n\\n", "|",
    "|-|", "|---|:-:|", "#", "# ", "###### ", "---", "===", "\\\\", "&amp;", "&#0;", "&#xd800;", "<br>",
    "http://a.b/c_d", "https://", "javascript:", "<img src=x>", "a", "word ", "\\u202e", "\\u05d0",
    "\\ud83e\\udd80", "\\t", "[x] ", "\\0", "$", "$$", "\\\\(", "\\\\)", "\\\\[", "\\\\]", "{", "}", "^", "_",
    "\\\\frac", "\\\\sqrt[", "\\\\left(", "\\\\right.", "\\\\begin{cases}", "\\\\end{cases}", "&", "\\\\\\\\", "\\\\text{",
    "\\\\sum", "\\\\hat", "\\\\href{javascript:a}", "'", "12"];
  const whole = document.createElement("div");
  const grown = document.createElement("div");
  for (let round = 0; round < count; round += 1) {
    let text = "";
    for (let left = 1 + below(40); left > 0; left -= 1) text += parts[below(parts.length)];
    whole.replaceChildren();
    new Markdown(whole).show(text);
    grown.replaceChildren();
    const growing = new Markdown(grown);
    for (let at = 0; at < text.length;) growing.show(text.slice(0, at += 1 + below(6)));
    growing.show(text);
    if (whole.innerHTML !== grown.innerHTML) {
      return JSON.stringify({ text, whole: whole.innerHTML, grown: grown.innerHTML });
    }
    const wrong = allowed(whole);
    if (wrong) return JSON.stringify({ text, wrong });
  }
  return "";
})"""

# Time of the page's thread for one of them.
BOMB_S = 1.5
# Texts that cost much in readers that look ahead again and again, or that go as deep as they nest.
BOMBS = """[
  "*".repeat(100000), "*a ".repeat(30000), "*a **b ".repeat(15000), "_a* ".repeat(30000),
  "[".repeat(100000), "[a](".repeat(30000), "![".repeat(50000), "[a](b \\"".repeat(20000),
  "`".repeat(100000), Array.from({ length: 400 }, (_, i) => "`".repeat(i + 1)).join(" "),
  "> ".repeat(50000), "- ".repeat(50000), "  - a\\n".repeat(10000), "#".repeat(100000),
  "# " + " ".repeat(100000) + "x", "|".repeat(50000) + "\\n" + "|-".repeat(50000),
  "- a\\n".repeat(20000), "<".repeat(100000), "&".repeat(100000), "https://".repeat(20000),
  "https://a" + ")".repeat(50000), "**a".repeat(20000) + "**".repeat(20000),
  ...['/*', '"', "'", '`', '`\\\\', '"\\\\', '"' + '""x', "a"].map((part) =>
    "```js\\n" + part.repeat(49000 / part.length) + "\\n```"),
  Array.from({ length: 300 }, (_, i) => " ".repeat(i * 2) + "- a").join("\\n"),
  "$".repeat(100000), "$a ".repeat(30000), "$a$ ".repeat(25000), "$$a\\n".repeat(25000), "\\\\(".repeat(50000),
  "\\\\(".repeat(50000) + "}\\\\)", "$" + "{".repeat(3900) + "$", "$" + "\\\\sqrt ".repeat(600) + "$",
  "$" + "x^".repeat(1900) + "$", "$" + "\\\\left(".repeat(600) + "$", "$" + "&".repeat(3900) + "$",
]"""


def markdown(browser, front):
    """Markdown is shown, raw on demand, and its code can be copied"""
    front.plays["show"] = saying(EXAMPLE)
    page = browser.page(front.address)
    say(page, "show")
    for selector, count in SHAPES.items():
        found = page.value(f"{LAST}.querySelectorAll(`.text {selector}`).length")
        check(found == count, f"{found} of {selector}, not {count}: {page.text('.text')}")
    page.value("navigator.clipboard.writeText = (text) => { window.copied = text; }")
    page.press("Copy", ".code")
    page.wait("the copy", "window.copied === 'def f(x):\\n    return \"<b>\" + x'")
    check(page.value("$('said').textContent") == "Copied.", "nobody is told")
    page.press("Raw")
    check(page.value(f"{LAST}.querySelector('.text').textContent") == EXAMPLE, "this is not raw")
    page.press("Raw")
    check(page.value(f"{LAST}.querySelectorAll('table').length") == 1, "the raw text stays")
    check(page.value("[...document.querySelectorAll('article p, .text.plain, #prompt')]"
                     ".every((one) => one.dir === 'auto')"), "a text has no direction of its own")
    page.close()


# Code by language, and what of it has which colour.
COLOURS = {
    ("python", 'def f(x):  # it\'s\n    return "<b>" + x * 2'): [
        ["keyword", "def"], ["comment", "# it's"], ["keyword", "return"], ["string", '"<b>"'],
        ["number", "2"]],
    ("rust", "fn f<'a>(x: &'a str) -> char { 'b' } // \"c\""): [
        ["keyword", "fn"], ["string", "'b'"], ["comment", '// "c"']],
    ("js", "/* a\n// b */ let `c\n"): [
        ["comment", "/* a\n// b */"], ["keyword", "let"], ["string", "`c\n"]],
    ("sql", "SELECT 1 -- all"): [["keyword", "SELECT"], ["number", "1"], ["comment", "-- all"]],
    ("text", 'for "all" 1'): [],
}


def code_has_colours(browser, front):
    """code that is closed has colours and loses no sign, and marks of direction end with their part"""
    page = browser.page(front.address)
    for (language, text), wanted in COLOURS.items():
        found = page.value(f"""(() => {{ const box = document.createElement("div");
            new Markdown(box).show({json.dumps(f"```{language}{chr(10)}{text}{chr(10)}```")});
            return [box.querySelector("code").textContent,
                [...box.querySelectorAll("code span")].map((one) => [one.className, one.textContent])];
            }})()""")
        check(found == [text, wanted], f"{language}: {found}")
    front.plays["turned"] = saying("`a\u202eb` [c\u202e](https://example.org) *d\u202e* e")
    say(page, "turned")
    check(page.value(f"[...{LAST}.querySelectorAll('.text code, .text a, .text em')].map("
                     "(one) => getComputedStyle(one).unicodeBidi).join()") == "isolate,isolate,isolate",
          "what turns the direction turns the rest of the line")
    page.close()


# Formulas, and the MathML that is made of each, without its source and the elements around; text
# where there is none.
FORMULAS = {
    "$x^2$": "<msup><mi>x</mi><mn>2</mn></msup>",
    r"$\frac{a}{b}$": "<mfrac><mi>a</mi><mi>b</mi></mfrac>",
    r"$\frac12$": "<mfrac><mn>1</mn><mn>2</mn></mfrac>",
    r"\(\sqrt[3]{\alpha}\)": "<mroot><mi>α</mi><mn>3</mn></mroot>",
    r"$\sum_{i}^n$": "<munderover><mo>∑</mo><mi>i</mi><mi>n</mi></munderover>",
    r"$\int_0^1$": "<msubsup><mo>∫</mo><mn>0</mn><mn>1</mn></msubsup>",
    "$f'$": "<msup><mi>f</mi><mo>′</mo></msup>",
    r"$\text{ if a}$": "<mtext>&nbsp;if&nbsp;a</mtext>",
    r"$\mathbb{R}$": "<mi>ℝ</mi>",
    r"$\unknown{x}$": r"<mtext>\unknown</mtext><mi>x</mi>",
    r"$\begin{matrix}a&b\\c\end{matrix}$":
        "<mtable><mtr><mtd><mrow><mi>a</mi></mrow></mtd><mtd><mrow><mi>b</mi></mrow></mtd></mtr>"
        "<mtr><mtd><mrow><mi>c</mi></mrow></mtd></mtr></mtable>",
    r"$\left[a\right.$": '<mrow><mo stretchy="true" fence="true">[</mo><mrow><mi>a</mi></mrow>'
                         '<mo stretchy="true" fence="true"></mo></mrow>',
    "$$\na\n- b\n$$": "<mi>a</mi><mo>−</mo><mi>b</mi>",
    "\\[ a \\]": "<mi>a</mi>",
    "costs $5 and $10, US$5/US$6, $HOME/$PATH": "", r"$\frac{1}$": "", "$$a": "", r"\(a": "",
    r"$\begin{script}a\end{script}$": "", "$" + "{" * 50 + "}" * 50 + "$": "", "`$x$`": "",
}


def formulas(browser, front):
    """formulas are drawn, keep their source for a copy, and stay as they are where they are not read"""
    page = browser.page(front.address)
    for text, wanted in FORMULAS.items():
        found = page.value(f"""(() => {{ const box = document.createElement("div");
            new Markdown(box).show({json.dumps(text)});
            box.querySelectorAll("annotation").forEach((one) => one.remove());
            return box.querySelector("math > semantics > mrow")?.innerHTML ?? ""; }})()""")
        check(found == wanted, f"{text} makes {found}")
    front.plays["area"] = saying("It is $\\pi r^2$:\n\n$$\n\\frac{1}{2}\n$$\n\nand no more.")
    say(page, "area")
    copied = page.value(f"""(() => {{ getSelection().selectAllChildren({LAST}.querySelector(".text"));
        const event = new ClipboardEvent("copy", {{ clipboardData: new DataTransfer(), bubbles: true }});
        document.dispatchEvent(event);
        return event.clipboardData.getData("text/plain").split(/\\s+/).join(" ").trim(); }})()""")
    check(copied == "It is $\\pi r^2$: $$ \\frac{1}{2} $$ and no more.", f"copied is {copied}")
    check(page.value(f"{LAST}.querySelector('math').getBoundingClientRect().width") > 10, "it is not drawn")
    page.close()


def injections(browser, front):
    """thirteen injections, and a hundred thousand characters of each bomb, are inert"""
    page = browser.page(front.address)
    for text in INJECTIONS:
        front.plays[text] = saying(text, size=3)
        say(page, text)
        wrong = page.value(f"({ALLOWED})({LAST}.querySelector('.text'))")
        check(not wrong, f"{text} makes {wrong}")
    page.value("document.querySelectorAll('.text a').forEach((one) => "
               "one.dispatchEvent(new MouseEvent('mouseover')))")
    check(page.value("typeof hacked") == "undefined", "a script was run")
    check(page.value("document.querySelectorAll('img, iframe, svg, script:not(body > script)')"
                     ".length") == 0, "something was made that loads")
    for number in range(page.value(f"(window.bombs = {BOMBS}).length")):
        before = page.metric("ThreadTime")
        page.value(f"new Markdown(document.createElement('div')).show(bombs[{number}])")
        took = page.metric("ThreadTime") - before
        check(took < BOMB_S, f"{page.value(f'bombs[{number}].slice(0, 20)')} takes {took} s")
    page.close()


def fuzz(browser, front):
    """Markdown of any text makes allowed elements alone, the same whole and as it grows"""
    page = browser.page(front.address)
    wrong = page.value(f"{FUZZ}(4000, {ALLOWED})")
    check(not wrong, wrong)
    page.close()


def many_chunks(browser, front):
    """a reply of 20,000 chunks is shown within 3 s, and costs as much a chunk as a shorter one"""
    costs = []
    for count, word in ((5000, "word "), (20000, "word "), (20000, "line\n"), (20000, "a\n\n")):
        front.plays["many"] = chunks(count, word)
        page = browser.page(front.address)
        before = page.metric("ThreadTime")
        say(page, "many")
        costs.append(page.metric("ThreadTime") - before)
        check(page.value("current.turns.at(-1).tokens") == count, "chunks are lost")
        check(page.value(f"{LAST}.querySelector('.text').textContent.length")
              >= count * len(word.strip()), "text is lost")
        page.close()
    print("   ", ", ".join(f"{cost:.2f} s" for cost in costs))
    check(max(costs) < 3, f"20,000 chunks take {costs} s")


def turns_that_are_changed(browser, front):
    """turns are edited, regenerated and deleted, and what failed is as it was"""
    front.plays |= {"a": saying("reply a"), "b": saying("reply b"), "c": saying("reply c")}
    page = browser.page(front.address)
    say(page, "a")
    say(page, "b")
    front.plays["b"] = saying("another b")
    page.press("Regenerate")
    page.wait("the other reply", f"{IDLE} && {LAST}.innerText.includes('another b')")
    check(texts(front) == ["a", "reply a", "b"], f"sent was {texts(front)}")
    front.plays["b"] = breaking("")
    page.press("Regenerate")
    page.wait("the failure", f"{IDLE} && $('notice').textContent")
    check(page.value("current.turns.length") == 4, "a reply is lost")
    page.press("Edit", "article.user")
    page.fill("article textarea", "c")
    check(page.value("document.querySelector('article textarea').clientWidth > $('log').clientWidth / 2"),
          "a message is edited in less than half of the page")
    page.key(ENTER, INPUT_METHOD)
    check(page.value("current.turns.length") == 4, "a choice of an input method sends an edit")
    page.fill("article textarea", "c")
    page.key(ENTER)
    page.wait("the reply", f"{IDLE} && {LAST}.innerText.includes('reply c')")
    check(texts(front) == ["a", "reply a", "c"], f"sent was {texts(front)}")
    page.press("Edit", "article.assistant")
    page.fill("article textarea", "mended")
    page.press("Save")
    page.wait("the focus", "document.activeElement.ariaLabel === 'Edit message 4'")
    say(page, "a")
    check(texts(front) == ["a", "reply a", "c", "mended", "a"], f"sent was {texts(front)}")
    page.value("document.querySelector('article.user [aria-label^=Delete]').click()")
    check(page.value("current.turns.map((turn) => turn.text).join()") == "c,mended,a,reply a",
          "deleted was something else")
    page.wait("the focus", "document.activeElement.id === 'prompt'")
    page.close()


CHECKS = [markdown, code_has_colours, formulas, injections, fuzz, many_chunks, turns_that_are_changed]
