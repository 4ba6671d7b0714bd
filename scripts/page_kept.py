"""What the browser keeps of the chat page: checks of `chat_page.py`."""

import json
import os
import tempfile

from page_front import Held, saying
from page_talk import BUSY, IDLE, LAST, check, say, send, texts

KEY = "key-that-is-never-kept"
KEPT = """(async () => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, await store.all(),
    await store.heads()]))()"""
TITLES = "[...document.querySelectorAll('#list [data-chat]')].map((one) => one.textContent)"


# What is shown, as it is shown.
IS_KEPT = """store.read(current.id).then((kept) =>
    JSON.stringify(kept) === JSON.stringify(plainConversation(current)))"""
# Tells the draft that was given to the store last, whether the store keeps it or not.
TELL_DRAFTS = """(() => { const write = store.write.bind(store);
    store.write = async (head, chat) => { await write(head, chat); window.drafted = chat.draft; };
})()"""


def settled(page):
    """Waits until what has changed is kept."""
    page.wait("the store", IS_KEPT)


def a_page_that_is_left(browser, front):
    """reload, Back and closing lose nothing, and no key is kept"""
    front.plays["one"] = saying("first")
    page = browser.page(front.address)
    page.fill("#key", KEY)
    page.fill("#system", "Be kind.")
    page.fill("#tools", "[]")
    page.fill("#temperature", "0.5")
    say(page, "one")
    page.type("a draft")
    settled(page)

    def same(how):
        page.wait(how, "document.querySelectorAll('article').length === 2")
        found = page.value("[$('prompt').value, $('system').value, $('tools').value, "
                           "$('temperature').value, $('key').value]")
        check(found == ["a draft", "Be kind.", "[]", "0.5", ""], f"{how}: {found}")

    page.reload()
    same("a reload")
    page.call("Page.navigate", url=front.address + "/version")
    page.wait("another page", "location.pathname === '/version'")
    page.value("history.back()")
    page.ready()
    same("Back")
    context = page.context
    page.close()
    page = browser.page(front.address, context)
    same("a new tab")
    say(page, "one")
    check(texts(front)[:3] == ["Be kind.", "one", "first"], f"sent was {texts(front)}")
    check(KEY not in page.value(KEPT), "the key is kept")
    page.close()


def a_list_of_chats(browser, front):
    """chats are listed, switched, deleted and exported"""
    front.plays |= {name: saying("reply to " + name) for name in ("red", "green", "blue")}
    page = browser.page(front.address)
    page.size(1200, 760)
    for name in ("red", "green", "blue"):
        say(page, name)
        page.press("New chat")
    check(page.value(TITLES) == ["blue", "green", "red"], page.value(TITLES))
    page.press("green")
    page.wait("the chat", f"{LAST}?.innerText.includes('reply to green')")
    page.wait("the focus", "document.activeElement.id === 'prompt'")
    exported = export(browser, page)
    check([len(chat["turns"]) for chat in exported["chats"]] == [2, 2, 2], exported)
    page.value("document.querySelector('[aria-label=\"Delete chat green\"]').click()")
    page.wait("the end of it", f"{TITLES}.length === 2 && !document.querySelector('article')")
    page.wait("the focus", "document.activeElement.dataset.chat")
    page.reload()
    page.wait("the list", f"{TITLES}.join() === 'blue,red'")
    page.press("Delete all")
    page.wait("the end of all", f"{TITLES}.length === 0")
    check(json.loads(page.value(KEPT))[2:] == [[], []], "deleted chats are kept")
    page.close()


CHOOSE = """(() => { const chosen = new DataTransfer();
    chosen.items.add(new File([%s], "chosen.json"));
    $("file").files = chosen.files;
    $("file").dispatchEvent(new Event("change")); })()"""


def choose(page, text):
    """Gives the page a file to import."""
    page.value("$('said').textContent = $('notice').textContent = ''")
    page.value(CHOOSE % json.dumps(text))
    page.wait("the word", "$('said').textContent || $('notice').textContent")


def an_export_comes_back(browser, front):
    """chats are renamed, found, and imported from an export, which nothing else is taken for"""
    front.plays |= {name: saying("reply to " + name) for name in ("red", "green")}
    page = browser.page(front.address)
    page.size(1200, 760)
    for name in ("red", "green"):
        say(page, name)
        page.press("New chat")
    page.value("window.prompt = () => 'Crimson list'")
    page.value("document.querySelector('[aria-label=\"Rename chat red\"]').click()")
    page.wait("the title", f"{TITLES}.join() === 'green,Crimson list'")
    page.fill("#search", "LIST crim")
    check(page.value(TITLES) == ["Crimson list"], page.value(TITLES))
    page.fill("#search", "")
    exported = export(browser, page)
    choose(page, json.dumps(exported))
    check("0 of 2" in page.text("#said"), "chats that are here come twice")
    page.press("Delete all")
    page.wait("the end of all", "$('said').textContent === 'Deleted.'")
    choose(page, json.dumps(exported))
    check("2 of 2" in page.text("#said"), page.text("#said"))
    page.reload()
    page.wait("the list", f"{TITLES}.join() === 'green,Crimson list'")
    page.press("Crimson list")
    page.wait("the chat", f"{LAST}?.innerText.includes('reply to red')")
    exported["chats"][0]["turns"][1]["calls"] = [{"id": 1}]
    exported["chats"][0]["id"] = "another"
    for wrong in ("no JSON", "null", "{}", json.dumps(exported)):
        choose(page, wrong)
        check("no export" in page.text("#notice"), f"{wrong} is imported")
    check(page.value(f"{TITLES}.length") == 2, "something else was imported")
    page.close()


def export(browser, page):
    with tempfile.TemporaryDirectory() as folder:
        browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder,
                     browserContextId=page.context, eventsEnabled=True)
        heard = len(browser.events)
        page.press("Export all")
        browser.event("Browser.downloadProgress", lambda one: one["state"] == "completed", heard)
        file = os.path.join(folder, "atlas-chats.json")
        with open(file, encoding="utf-8") as text:
            return json.load(text)


def nothing_is_kept_where_that_is_wished(browser, front):
    """chats are not kept where that is switched off"""
    front.plays["one"] = saying("first")
    page = browser.page(front.address)
    say(page, "one")
    settled(page)
    page.value("$('keep').click()")
    page.wait("the word", "$('kept').textContent.includes('not kept')")
    say(page, "one")
    page.value(TELL_DRAFTS)
    page.type("a draft")
    page.wait("the draft", "window.drafted === 'a draft'")
    kept = page.value(KEPT)
    check("first" not in kept and "draft" not in kept, kept)
    page.reload()
    check(page.value("document.querySelectorAll('article').length") == 0, "chats are kept")
    page.close()


def a_reply_whose_page_is_left(browser, front):
    """what was said of a reply whose page is left is kept, and says so"""
    held = front.plays["long"] = Held("The beginning", " and the end")
    page = browser.page(front.address)
    send(page, "long")
    page.wait("the reply", f"{BUSY} && {LAST}.innerText.includes('The beginning')")
    page.reload()
    page.wait("what was said", f"{IDLE} && {LAST}.innerText.includes('The beginning')")
    check("was left" in page.value(f"{LAST}.innerText"), "nothing says that the reply is not whole")
    held.go.set()
    page.close()


def two_tabs(browser, front):
    """two tabs do not write over each other's conversation"""
    front.plays |= {"one": saying("first"), "two": saying("second")}
    page = browser.page(front.address)
    say(page, "one")
    settled(page)
    other = browser.page(front.address, page.context)
    check(other.value("document.querySelectorAll('article').length") == 0,
          "a second tab begins in a chat that is open")
    other.press("one")
    other.wait("the chat", f"{LAST}.innerText.includes('first')")
    say(other, "two")
    page.wait("the other tab's turn", f"{LAST}.innerText.includes('second')")
    say(page, "one")
    check(texts(front) == ["one", "first", "two", "second", "one"], f"sent was {texts(front)}")
    page.close()
    other.close()


CHECKS = [a_page_that_is_left, a_list_of_chats, an_export_comes_back,
          nothing_is_kept_where_that_is_wished,
          a_reply_whose_page_is_left, two_tabs]
