"""Tries the chat page of a server in headless Chromium, over a server in front that plays failures.

    atlas-cpu-tiny-nvfp4 serve --port 8000 &
    python3 scripts/chat_page.py http://127.0.0.1:8000 --screenshots .

Needs `chromium` on the path and nothing beyond Python's standard library. Exits with 1 at the first
thing that is not as it should be; `--only` chooses checks by their names.
"""

import argparse
import os
import sys
import tempfile
import time

import page_kept
import page_people
import page_talk
import page_text
from page_browser import Browser, Failed
from page_front import Front

CHECKS = [*page_talk.CHECKS, *page_kept.CHECKS, *page_text.CHECKS, *page_people.CHECKS]


def keeps_to_itself(browser, front):
    """Nothing but the server was asked, and nothing was complained of."""
    asked = [event["params"]["request"]["url"] for event in browser.events
             if event["method"] == "Network.requestWillBeSent"]
    own = (front.address, front.address.replace("http://", "http://any:secret@"), "data:", "about:", "blob:")
    outside = [url for url in asked if not url.startswith(own)]
    if not asked or outside:
        raise Failed(f"other servers are asked: {outside}")
    thrown = [event["params"] for event in browser.events
              if event["method"] == "Runtime.exceptionThrown"]
    logged = [event["params"]["entry"] for event in browser.events
              if event["method"] == "Log.entryAdded"]
    # Answers that are errors are played, and the browser notes them.
    problems = thrown + [entry for entry in logged if entry["source"] != "network"]
    if problems:
        raise Failed(f"the console tells of {problems}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("address", help="of a running server, as http://127.0.0.1:8000")
    parser.add_argument("--screenshots", help="folder for pictures of the page")
    parser.add_argument("--only", default="", help="run the checks whose name begins so")
    options = parser.parse_args()
    front = Front(options.address.rstrip("/"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            for check in [check for check in CHECKS if check.__name__.startswith(options.only)]:
                since = time.monotonic()
                check(browser, front)
                print(f"ok: {check.__doc__} ({time.monotonic() - since:.1f} s)", flush=True)
            keeps_to_itself(browser, front)
            if options.screenshots:
                page_people.pictures(browser, front, os.path.abspath(options.screenshots))
        except Failed as problem:
            sys.exit(f"failed: {problem}")
        finally:
            browser.close()


if __name__ == "__main__":
    main()
