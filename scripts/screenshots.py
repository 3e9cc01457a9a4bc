"""Pictures of every page of `tenfold watch`, for docs/watch.md: starts the server on a folder of runs and photographs
it.

    python scripts/screenshots.py RUNS OUT RUN OTHER [--only VIEW ...] [--prefix NAME]

RUN is shown by itself, RUN and OTHER side by side. Needs playwright and a Chromium on the PATH.
"""

import argparse
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

SIZES = (("wide", 1280, "light"), ("narrow", 400, "dark"))


def play(page: Page) -> None:
    """Let two checkpoints go on with a prompt, and look at one token's alternatives."""
    page.get_by_label("prompt").fill("import os\n\ndef main(")
    page.get_by_label("tokens").fill("120")
    page.get_by_label("beside it").select_option(index=2)
    page.get_by_role("button", name="Generate").click()
    page.get_by_text("tokens in").nth(1).wait_for(timeout=90_000)
    page.locator(".token").nth(40).hover()


def framed(page: Page) -> None:
    """Wait until the page in the frame is drawn."""
    page.frame_locator("iframe").locator("h1").first.wait_for()
    page.wait_for_timeout(1500)


def views(run: str, other: str) -> dict[str, tuple[str, Callable[[Page], None]]]:
    """What is photographed: name -> address and what is done there first."""

    def nothing(page: Page) -> None:
        pass

    return {
        "runs": ("#/", nothing),
        "run": (f"#/run/{run}", nothing),
        "compare": (f"#/compare/{run},{other}", nothing),
        "film": (f"#/film/{run}", nothing),
        "play": (f"#/play/{run}", play),
        "ladder": ("#/ladder/gpt2-124m", framed),  # where ladders/ lies beside the runs
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("run")
    parser.add_argument("other")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--prefix", default="")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    server = subprocess.Popen(
        [sys.executable, "-m", "tenfold", "watch", given.runs, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout
        address = next(word for line in server.stdout for word in line.split() if word.startswith("http://"))
        with sync_playwright() as play_wright:
            browser = play_wright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
            for size, width, scheme in SIZES:
                context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
                for name, (hash_, first) in views(given.run, given.other).items():
                    if given.only and name not in given.only:
                        continue
                    page = context.new_page()
                    page.goto(f"{address.split('#')[0]}{hash_}")
                    page.wait_for_timeout(1500)
                    first(page)
                    page.wait_for_timeout(300)
                    page.screenshot(
                        path=given.out / f"{given.prefix}{name}-{size}.png", full_page=name not in ("run", "ladder")
                    )
                    page.close()
            browser.close()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)


if __name__ == "__main__":
    main()
