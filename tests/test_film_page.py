"""The film's page in a browser, while a training goes on and where files are not as they should be."""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenfold import rundir

pytest.importorskip("playwright.sync_api")
from test_page import (
    BROWSER,
    HEADS,
    LAYERS,
    STEPS,
    TOKENS,
    add_film,
    browser,
    make_run,
    map_of,
    picture,
    served,
    tab,
    until,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(BROWSER is None, reason="needs a Chromium on the PATH"),
]
Open = Callable[..., Any]
FIXTURES = (browser, tab)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run at step 40."""
    return make_run(tmp_path / "runs", "one", 40)


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with served(run.parent) as url:
        yield f"{url}#/film/one"


def shows(step: int) -> str:
    """Whether the enlarged map is the last head's at this step, on the second text."""
    return f"document.querySelector('.lens canvas').dataset.map == '1/{step}/{LAYERS * HEADS - 1}'"


def test_a_film_grows_and_goes_back_with_its_training(run: Path, address: str, tab: Open) -> None:
    """The way through training comes with its second snapshot, and what a resume took back is shown no longer."""
    add_film(run, STEPS[:1])
    page = tab(address)
    until(page, shows(0))
    assert page.get_by_role("button", name="Play").count() == 0
    assert page.get_by_role("slider", name="snapshot").count() == 0
    add_film(run, STEPS[1:])
    until(page, shows(40))
    assert page.get_by_role("button", name="Play").is_visible()
    slider = page.get_by_role("slider", name="snapshot")
    slider.fill("1")
    until(page, shows(10))
    rundir.append(run, {"step": 20, "event": "resume"})
    page.wait_for_timeout(9000)  # longer than it takes to ask again
    until(page, shows(10))
    assert slider.get_attribute("max") == "1"
    page.get_by_role("button", name="Play").click()
    until(page, shows(10))


def test_a_snapshot_that_cannot_be_read_is_said_and_no_other_is_shown(run: Path, address: str, tab: Open) -> None:
    add_film(run, STEPS)
    cut, foreign = (run / "film" / f"step-{step:06d}.bin" for step in STEPS[:2])
    cut.write_bytes(cut.read_bytes()[:-9])
    foreign.write_bytes(zlib.compress(b"of another film"))
    page = tab(address)
    until(page, shows(40))
    whole = picture(page, ".sheet canvas"), picture(page, ".lens canvas")
    slider, says = page.get_by_role("slider", name="snapshot"), page.locator(".says")
    for place in (0, 1):
        slider.fill(str(place))
        until(
            page, f"document.querySelector('.says').textContent.includes('snapshot of step {STEPS[place]} cannot be')"
        )
        assert not {picture(page, ".sheet canvas"), picture(page, ".lens canvas")} & set(whole)
        page.locator(".tokens .token").nth(3).click()
        assert "cannot be read: it is damaged or gone" in says.inner_text()
        assert page.locator(".tokens .token").nth(3).get_attribute("aria-label") == "w3: loss unknown"
    slider.fill("2")
    until(page, shows(40))
    page.locator(".tokens .token").nth(TOKENS - 1).click()
    key = int(map_of(40, LAYERS - 1, HEADS - 1, 1)[TOKENS - 1].argmax())
    assert f"({key}) 1.00" in says.inner_text()
    assert (picture(page, ".sheet canvas"), picture(page, ".lens canvas"))[0] == whole[0]
