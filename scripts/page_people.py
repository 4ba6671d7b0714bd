"""The chat page for people with a keyboard, a screen reader, a phone or paper, and its pictures:
checks of `chat_page.py`."""

import base64
import json
import os
import re

from page_browser import ENTER, ESCAPE, TAB
from page_front import saying
from page_talk import IDLE, LAST, WEATHER, check, say

FITS = "document.documentElement.scrollWidth <= innerWidth"


def names(browser, front):
    """turns, fields and buttons have names, and what happens is said"""
    front.plays["hello"] = saying("Hello **there**.")
    page = browser.page(front.address)
    say(page, "hello")
    check(page.named("article") == ["You, message 1", "Atlas, message 2"], page.named("article"))
    unnamed = [role for role in ("button", "textbox", "checkbox", "spinbutton", "meter", "log",
                                 "navigation", "link", "group")
               if not all(page.named(role))]
    check(not unnamed, f"without a name: {unnamed}")
    check("Copy message 2" in page.named("button"), page.named("button"))
    check(page.value("$('said').role") == "status" and "Hello" in page.text("#said"),
          "the reply is not said")
    headings = page.value("[...document.querySelectorAll('h1, h2, h3, h4')]"
                          ".filter((one) => one.offsetParent).map((one) => one.tagName).join()")
    check(headings == "H1,H2,H2", headings)
    page.close()


def a_small_window(browser, front):
    """a phone and a window of 360 by 300 fit, with the settings"""
    front.plays["wide"] = saying("x" * 300 + "\n```\n" + "y" * 300 + "\n```\n|" + "z|" * 60
                                 + "\n|" + "-|" * 60)
    page = browser.page(front.address)
    say(page, "wide")
    for width, height in ((320, 640), (360, 640), (360, 300)):
        page.size(width, height, "dark")
        check(page.value(FITS), f"the page is wider than {width}")
        check(page.value("$('send').getBoundingClientRect().bottom <= innerHeight"),
              f"the button is below {height}")
        rows = page.value("new Set([...document.querySelectorAll('header button')].map((one) => "
                          "one.getBoundingClientRect().top)).size")
        check(rows == 1 and page.value("document.querySelector('header').clientHeight") < 56,
              f"the header has more than a row at {width}")
        check(page.value("$('log').clientHeight") > 80, "there is no room for the conversation")
    dark = page.value("getComputedStyle(document.body).backgroundColor")
    check(dark == "rgb(22, 24, 27)", "the page is not dark where that is wished")
    page.press("Settings")
    inside = "((box) => box.top >= 0 && box.top < innerHeight - 30)($('%s').getBoundingClientRect())"
    for field in ("thinking", "temperature", "key", "system", "tools", "settings-close"):
        page.value(f"$('{field}').focus()")
        check(page.value("document.activeElement.id") == field and page.value(inside % field),
              f"{field} cannot be reached")
    # The page moves the focus once it is told of the end, which may be later.
    page.value("void $('settings').addEventListener('close', () => { window.isClosed = true; })")
    page.key(ESCAPE)
    page.wait("the end of the settings", "window.isClosed")
    page.wait("the focus", "document.activeElement.id === 'prompt'")
    # The list comes late where the browser's store is slow.
    page.value("window.late = heads, heads = new Map(), drawChats()")
    page.press("Chats")
    page.value("heads = window.late, drawChats()")
    page.wait("the list of chats", "!!document.activeElement.dataset.chat")
    check(page.value(FITS), "the list is wider than the page")
    page.key(ESCAPE)
    page.wait("the focus", "document.activeElement.id === 'chats-open'")
    page.close()


def a_keyboard_alone(browser, front):
    """all is reached by Tab"""
    front.plays["hello"] = saying("```\ncode\n```")
    page = browser.page(front.address)
    say(page, "hello")
    reached = set()
    for _ in range(40):
        page.key(TAB)
        reached.add(page.value("document.activeElement.id || document.activeElement.textContent"))
    wanted = {"send", "prompt", "settings-open", "clear", "log", "Copy", "Raw", "Edit",
              "Regenerate", "Delete", "code"}
    check(wanted <= reached, f"not reached: {wanted - reached}")
    page.close()


def paper(browser, front):
    """printing prints all of a conversation, its thoughts too"""
    front.plays["long"] = saying("\n\n".join(f"paragraph {at}" for at in range(200)), size=100)
    page = browser.page(front.address)
    say(page, "long")
    made = page.call("Page.printToPDF")["data"]
    pages = len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(made)))
    check(pages >= 4, f"a long conversation has {pages} pages")
    page.close()


def pictures(browser, front, folder):
    """Pictures of the page: of the README, in the dark, and on a phone."""
    front.plays["How do I reverse a list in Python?"] = saying(
        "Two ways:\n\n1. `list.reverse()` reverses **in place**\n2. a slice makes a copy\n\n"
        "```python\nnumbers = [1, 2, 3]\nnumbers[::-1]  # [3, 2, 1]\n```\n", pause=0.02)
    page = browser.page(front.address)
    page.size(1100, 820)
    say(page, "What is the capital of France?")
    page.press("New chat")
    say(page, "How do I reverse a list in Python?")
    page.fill("#tools", json.dumps(WEATHER))
    say(page, "What is the weather in Paris?")
    page.wait("the gauge", "$('gauge').value > 0")
    page.picture(os.path.join(folder, "screenshot.png"))
    page.size(1100, 820, "dark")
    page.picture(os.path.join(folder, "dark.png"))
    page.size(360, 640)
    page.picture(os.path.join(folder, "phone.png"))
    page.press("Settings")
    page.picture(os.path.join(folder, "settings.png"))


CHECKS = [names, a_small_window, a_keyboard_alone, paper]
