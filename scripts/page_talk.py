"""What is said on the chat page and what the server is sent: checks of `chat_page.py`."""

import json
import re

from page_browser import ENTER, ESCAPE, INPUT_METHOD, TAB, Failed
from page_front import Held, breaking, calling, refusing, saying

LAST = "[...document.querySelectorAll('article.assistant')].at(-1)"
IDLE = "$('send').textContent === 'Send'"
BUSY = "$('send').textContent === 'Stop'"
WEATHER = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}]


def check(holds, what):
    if not holds:
        raise Failed(what)


def send(page, text):
    page.type(text)
    page.key(ENTER)


def say(page, text):
    """Sends a message and waits for the end of the reply."""
    send(page, text)
    page.wait("the reply", f"{IDLE} && {LAST} && !{LAST}.ariaBusy && !current.live")


def texts(front):
    return [message["content"] for message in front.last()]


def first_message(browser, front):
    """a message is sent and answered, with figures of the server's count and a rate"""
    # No rate is told of tokens that come together, as a browser that is busy has them now and then.
    check(any(answered(browser, front) for _ in range(3)), "no rate is told")


def answered(browser, front):
    """Asks on a new page; whether the figures have a rate."""
    page = browser.page(front.address)
    say(page, "What is the capital of France?")
    check("Paris" in page.value(f"{LAST}.innerText"), "the answer is not shown")
    figures = page.value(f"{LAST}.querySelector('.figures').innerText")
    tokens = page.value("current.turns.at(-1).usage.completion")
    shape = rf"first token [\d.]+ m?s · ([\d.]+ tokens/s · )?{tokens} tokens"
    told = re.fullmatch(shape, figures)
    check(told, f"figures are {figures}, of {tokens} tokens")
    check(page.value(f"{LAST}.querySelector('details').open === false"), "thoughts are not folded")
    page.close()
    return told[1]


def a_start(browser, front):
    """a chat that has not begun names the model and its context, and has examples to begin with"""
    page = browser.page(front.address)
    page.wait("the facts", "/\\S+ answers here. A chat holds [\\d,]+ tokens/.test($('log').innerText)")
    example = page.value("document.querySelector('.start button').textContent")
    front.plays[example] = saying("Paris.")
    page.press(example)
    check(page.value("document.activeElement === $('prompt') && $('prompt').value") == example,
          "an example is not where it can be changed")
    page.press("Send")
    page.wait("the reply", f"{IDLE} && {LAST}?.innerText.includes('Paris') && !current.live")
    check(not page.value("Boolean(document.querySelector('.start'))"), "the start stays")
    check(texts(front) == [example], f"sent was {texts(front)}")
    page.press("New chat")
    page.wait("the start", "document.querySelector('.start')")
    page.close()


def tool_call(browser, front):
    """a tool is called, counted whole, and its result goes back"""
    page = browser.page(front.address)
    page.fill("#tools", json.dumps(WEATHER))
    say(page, "What is the weather in Paris?")
    check("get_weather" in page.value(f"{LAST}.innerText"), "the call is not shown")
    tokens = page.value("current.turns.at(-1).usage.completion")
    check(f"· {tokens} tokens" in page.value(f"{LAST}.innerText"), "tokens are not those of usage")
    page.fill("article .call textarea", "18 degrees, sunny")
    page.press("Send result")
    page.wait("the answer", f"{IDLE} && document.querySelectorAll('article').length === 3")
    check([message["role"] for message in front.last()] == ["user", "assistant", "tool"]
          and front.last()[2]["content"] == "18 degrees, sunny", f"sent was {front.last()}")
    page.close()


# Gives files, by their names the texts or bytes of each, to what is done with them.
WITH_FILES = """((files, act) => {{
  const data = new DataTransfer();
  for (const [name, text] of Object.entries(files)) {{
    data.items.add(new File([typeof text === "string" ? text : new Uint8Array(text)], name));
  }}
  act(data);
}})({}, (data) => {})"""
DROP = """document.dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }))"""
CHOOSE = """{ $("chosen").files = data.files; $("chosen").dispatchEvent(new Event("change")); }"""
CHIPS = "document.querySelectorAll('#files .chip').length"


def text_files(browser, front):
    """text files are dropped or chosen, are chips, are sent in fences, and others are told of"""
    page = browser.page(front.address)
    page.value(WITH_FILES.format(json.dumps({"a.py": "x = 1\n```\n", "b": [0xff, 0xfe]}), DROP))
    page.wait("the first file", f"{CHIPS} === 1 && $('notice').textContent.includes('b is no text')")
    page.value(WITH_FILES.format("{ c: 'x'.repeat(FILE_BYTES_MAX + 1), d: 'y' }", CHOOSE))
    page.wait("the second", f"{CHIPS} === 2 && $('notice').textContent.includes('c has 513 KiB')")
    check("Remove file d" in page.named("button"), page.named("button"))
    page.press("✕", "#files")
    check(page.value(CHIPS) == 1, "a file cannot be taken away")
    page.wait("the draft", "current.revision")
    page.reload()
    page.wait("the file again", f"{CHIPS} === 1")
    front.plays["read"] = breaking("")
    send(page, "read")
    page.wait("the failure", f"{IDLE} && $('notice').textContent && {CHIPS} === 1")
    front.plays["read"] = saying("Read.")
    page.press("Send")
    page.wait("the reply", f"{IDLE} && {LAST}?.innerText.includes('Read.') && !current.live")
    parts = [part["text"] for part in front.last()[-1]["content"]]
    check(parts == ["read", "\n\n````a.py\nx = 1\n```\n````"], f"sent was {parts}")
    check(page.value(CHIPS) == 0 and page.text("article.user .chip").startswith("a.py"),
          "the file is not with its message")
    say(page, "What is in the file?")
    check(not page.text("#notice"), f"the server says {page.text('#notice')}")
    page.close()


def new_chat_during_a_reply(browser, front):
    """a reply belongs to its conversation, whichever is shown when it ends"""
    held = front.plays["Tell me."] = Held("It is", " late.")
    front.plays["Hello"] = saying("Hello.")
    page = browser.page(front.address)
    send(page, "Tell me.")
    page.wait("the first piece", f"{LAST}.innerText.includes('It is')")
    page.press("New chat")
    check(page.value("document.querySelectorAll('article').length") == 0, "a new chat has turns")
    say(page, "Hello")
    check(texts(front) == ["Hello"], f"the new chat was sent {texts(front)}")
    held.go.set()
    page.wait("the end", "![...loaded.values()].some((chat) => chat.live)")
    check("late" not in page.text("#log"), "the old reply is in the new chat")
    page.press("Tell me.")
    page.wait("the old chat", f"{LAST}.innerText.includes('It is late.')")
    say(page, "Hello")
    check(texts(front) == ["Tell me.", "It is late.", "Hello"], f"sent was {texts(front)}")
    page.close()


def a_refused_message(browser, front):
    """what is refused leaves the conversation, is back in its box, and can be sent again"""
    page = browser.page(front.address)
    long = "word " * 4000
    send(page, long)
    page.wait("the refusal", f"{IDLE} && $('notice').textContent")
    check("maximum context length" in page.text("#notice"), page.text("#notice"))
    check(page.value("$('prompt').value") == long, "the message is not in its box")
    check(page.value("current.turns.length") == 0, "the message is in the conversation")
    page.wait("the advice", "$('advice').textContent.includes('does not fit')")
    page.fill("#prompt", "")
    say(page, "hi")
    check(texts(front) == ["hi"], f"sent was {len(texts(front))} messages")
    front.plays["broken"] = breaking("")
    send(page, "broken")
    page.wait("the failure", f"{IDLE} && $('notice').textContent.includes('broke off')")
    check(page.value("current.turns.length") == 2, "a message without a reply stays")
    page.close()


def a_reply_that_breaks(browser, front):
    """a reply that breaks off stays as it is shown, and says so"""
    front.plays["half"] = breaking("The first half")
    front.plays["on"] = saying("On.")
    page = browser.page(front.address)
    say(page, "half")
    check("broke off" in page.value(f"{LAST}.innerText"), "nothing says that it broke off")
    say(page, "on")
    check(texts(front) == ["half", "The first half", "on"], f"sent was {texts(front)}")
    page.close()


def the_gauge(browser, front):
    """the context is shown, and what to do before it is full"""
    front.plays["much"] = saying("word " * 30)
    page = browser.page(front.address)
    context = page.value("server.context")
    page.wait("the gauge", f"$('count').textContent === '0 of {context:,} tokens of context'")
    front.plays["much"] = lambda exchange: (exchange.begin(), exchange.chunk(
        {"content": "much"}, int(context * 0.85)), exchange.end())
    say(page, "much")
    page.wait("the advice", "/8\\d % full: delete/.test($('advice').textContent)")
    check(page.value("$('gauge').value") > context * 0.8, "the gauge is not full")
    page.press("Delete", "article.user")
    page.wait("an empty gauge", "$('gauge').value === 0 && !$('advice').textContent")
    page.close()


def a_waiting_reply(browser, front):
    """a queued reply says that it waits, and its figures are the model's"""
    held = front.plays["queued"] = Held("", "Done.", comment="waiting for a slot")
    page = browser.page(front.address)
    send(page, "queued")
    page.wait("the word", f"{LAST}.innerText.includes('waiting for a free place')")
    check("first token" not in page.value(f"{LAST}.innerText"), "a token that is not there is timed")
    held.go.set()
    page.wait("the end", IDLE)
    figures = page.value(f"{LAST}.querySelector('.figures').innerText")
    check(figures.startswith("waited 31.0 s · first token 0 ms"), figures)
    page.close()


def few_tokens(browser, front):
    """a reply that is cut off says so, with as many tokens as the server counts"""
    page = browser.page(front.address)
    page.fill("#length", "8")
    say(page, "Tell me everything that you know.")
    figures = page.value(f"{LAST}.querySelector('.figures').innerText")
    check("8 tokens" in figures and " 0.0 " not in figures, figures)
    check("cut off at the limit: Most tokens is 8" in figures, figures)
    page.close()


def a_cut_call(browser, front):
    """a call that is cut off is not made, and its tokens are counted"""
    front.plays["cut"] = calling('{"city": "Par', "length")
    front.plays["whole"] = calling('{"city": "Paris"}', "tool_calls")
    page = browser.page(front.address)
    say(page, "cut")
    shown = page.value(f"{LAST}.innerText")
    check("not whole" in shown and "cut off at the limit" in shown, shown)
    check("Send result" not in shown, "the results of a call that is cut off are asked for")
    say(page, "whole")
    check("tool_calls" not in front.last()[1], f"sent was {front.last()}")
    shown = page.value(f"{LAST}.innerText")
    check("11 tokens" in shown and "Send result" in shown, shown)
    page.close()


def settings_that_cannot_be_sent(browser, front):
    """Send does something: a value is sent, or its field is shown with what is wrong"""
    front.plays["ok"] = saying("ok")
    page = browser.page(front.address)
    page.fill("#temperature", "0.75")
    say(page, "ok")
    check(front.asked[-1]["temperature"] == 0.75, f"sent was {front.asked[-1]}")
    sampling = {"top-p": 0.9, "top-k": 20, "min-p": 0.05, "seed": 7}
    for field, value in sampling.items():
        page.fill("#" + field, str(value))
    say(page, "ok")
    sent = {field: front.asked[-1].get(field.replace("-", "_")) for field in sampling}
    check(sent == sampling, f"sent was {sent}")
    for field, wrong in (("temperature", "3"), ("length", "1.5"), ("top-p", "2"), ("top-k", "-1"),
                         ("min-p", "2"), ("seed", "-1"), ("tools", "[{")):
        right = page.value(f"$('{field}').value")
        page.fill("#" + field, wrong)
        send(page, "ok")
        page.wait("the settings", f"$('settings').open && document.activeElement.id === '{field}'")
        check(page.value(f"$('wrong').textContent && $('{field}').ariaInvalid === 'true'"),
              f"nothing says what is wrong with {field}")
        check(page.value("$('prompt').value") == "ok", "the message is lost")
        page.fill("#" + field, right)
        check(page.value(f"!$('wrong').textContent && $('{field}').ariaInvalid === 'false'"),
              f"what was wrong with {field} is not checked again where it is typed")
        page.press("Done")
        page.fill("#prompt", "")
    page.press("Send")
    check(page.text("#notice") == "Type a message first.", "an empty message is answered by nothing")
    page.close()


def keys_that_do_not_send(browser, front):
    """input methods, number fields and Shift keep their Enter"""
    held = front.plays["held"] = Held("a", "b")
    page = browser.page(front.address)
    before = len(front.asked)
    page.type("held")
    page.key(ENTER, INPUT_METHOD)
    check(len(front.asked) == before, "a choice of an input method sends")
    page.fill("#prompt", "held")
    page.key(ENTER)
    page.wait("the reply", f"{BUSY} && {LAST}.innerText.includes('a')")
    page.press("Settings")
    page.value("$('length').focus()")
    page.key(ENTER)
    check(page.value(BUSY), "Enter in a field stops the reply")
    page.press("Done")
    send(page, "more")
    check("being written" in page.text("#notice"), "Enter during a reply is answered by nothing")
    check(page.value("$('prompt').value") == "more", "what is typed during a reply is lost")
    held.go.set()
    page.wait("the end", IDLE)
    page.close()


def stop(browser, front):
    """Escape and the button stop a reply, and what was said of it stays"""
    page = browser.page(front.address)
    for how in ("key", "button"):
        held = front.plays["held"] = Held("The beginning", " and the end")
        send(page, "held")
        page.wait("the reply", f"{BUSY} && {LAST}.innerText.includes('The beginning')")
        page.key(ESCAPE) if how == "key" else page.press("Stop")
        page.wait("the stop", IDLE)
        check("Stopped." in page.value(f"{LAST}.innerText"), f"the {how} does not stop")
        page.wait("the focus", "document.activeElement.id === 'prompt'")
        held.go.set()
    front.plays["held"] = Held("", "never")
    send(page, "held")
    page.wait("the reply", BUSY)
    page.key(ESCAPE)
    page.wait("the stop", IDLE)
    check(page.value("$('prompt').value") == "held", "a message without a reply is not given back")
    page.key(TAB)
    check(page.value("document.activeElement.id") == "send", "Tab does not reach the button")
    page.close()


def proxies_that_answer(browser, front):
    """answers of proxies, and no answer, are sentences"""
    page = browser.page(front.address)
    large = "<html><head><title>413 Request Entity Too Large</title></head></html>"
    front.plays["413"] = refusing(413, "text/html", large)
    front.plays["502"] = refusing(502, "text/plain", "")
    front.plays["200"] = refusing(200, "text/html", "<title>Log in</title>")
    for status, words in (("413", "The proxy answered 413: Request Entity Too Large: the conver"),
                          ("502", "The proxy answered 502: Bad Gateway: it does not reach"),
                          ("200", "The proxy answered 200: Log in")):
        send(page, status)
        page.wait("the sentence", f"{IDLE} && $('notice').textContent")
        check(page.text("#notice").startswith(words), page.text("#notice"))
        check(page.value("$('prompt').value") == status, "the message is lost")
        page.fill("#prompt", "")
    page.close()


def a_server_that_is_away(browser, front):
    """the status line follows a server that stops and comes again"""
    page = browser.page(front.address)
    with front.away():
        send(page, "hi")
        page.wait("the sentence", "$('notice').textContent.includes('does not answer')")
        page.wait("the status", "$('state').textContent.includes('does not answer')")
        check(page.value("$('prompt').value") == "hi", "the message is lost")
    page.ready()
    page.close()


def an_address_with_credentials(browser, front):
    """a name and a password in the address do not keep the page from its server"""
    front.plays["ok"] = saying("ok")
    front.password = "Basic YW55OnNlY3JldA=="
    try:
        page = browser.page(front.address.replace("http://", "http://any:secret@"))
        say(page, "ok")
        page.close()
    finally:
        front.password = None


CHECKS = [first_message, a_start, tool_call, text_files, new_chat_during_a_reply, a_refused_message,
          a_reply_that_breaks,
          the_gauge, a_waiting_reply, few_tokens, a_cut_call, settings_that_cannot_be_sent,
          keys_that_do_not_send, stop, proxies_that_answer, a_server_that_is_away,
          an_address_with_credentials]
