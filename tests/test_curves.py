"""The reference curves: what they are made of, that they hold for runs that they were not made of, and what they
catch."""

import tomllib
from fnmatch import fnmatch
from itertools import pairwise

import pytest

from conftest import ROOT
from tenfold.errors import ConfigError
from tenfold.reference import evals
from tenfold.reference.curves import (
    Curve,
    Points,
    band,
    cubic,
    curve,
    curves,
    expected,
    hellaswag_due,
    middle,
    place,
    points_of,
    step_of,
    table,
)
from tenfold.run import preset

EDU, FINEWEB = curve("fineweb-edu-124m"), curve("fineweb-124m")
STEP = 524_288
PLAIN = table()["curves"]["fineweb-edu-124m"]["runs"]


def places(run: str, against: Curve = EDU, widened: bool = False) -> dict[int, str]:
    """Step -> where a published run stands there."""
    found = {tokens // STEP: place(against, tokens, loss, widened) for tokens, loss in points_of(run)}
    assert all(found.values())
    return {step: at.where for step, at in found.items() if at}


def without(run: str) -> Curve:
    """The FineWeb-Edu curve as it would be without one of its runs."""
    others = middle([points_of(other) for other in PLAIN if other != run])
    return Curve(**{**EDU.__dict__, "points": others})


def test_every_run_has_a_source_and_falling_positions() -> None:
    for name, run in table()["runs"].items():
        assert run["source"], name
        assert run["kind"] in ("reference", "variant", "context"), name
        assert all(left[0] < right[0] for left, right in pairwise(run["points"])), name
    used = {run for row in table()["curves"].values() for run in row["runs"]}
    assert used == {name for name, run in table()["runs"].items() if run["kind"] == "reference"}


def test_the_table_is_in_the_wheel() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["tenfold"]
    assert any(fnmatch("reference/curves.json", pattern) for pattern in patterns)


def test_the_recipe_is_the_preset_and_the_figures_are_those_of_the_other_table() -> None:
    run = preset("gpt2-124m")
    assert EDU.tokens_per_step == run.recipe.targets == STEP
    assert {key: getattr(run.model, key) for key in EDU.model} == EDU.model
    assert {key: getattr(run.recipe, key) for key in EDU.recipe} == pytest.approx(EDU.recipe)
    assert dict(EDU.levels)[12_000] == evals.known("hellaswag")["gpt2-124m"]["acc_norm"]
    assert EDU.standard_error == evals.table()["one_standard_error_hellaswag"]


def test_the_curve_is_the_median_and_falls() -> None:
    assert dict(EDU.points)[250 * STEP] == pytest.approx((6.1668 + 6.1691) / 2)  # the inner two of four
    assert 5000 * STEP not in dict(EDU.points)  # one run only, and rounded
    assert FINEWEB.points == points_of("llmc_fineweb10B_baseline_2024-10-13")
    for known in curves().values():
        assert all(left[1] > right[1] for left, right in pairwise(known.points))
        steps = [expected(known, step * STEP) for step in range(250, known.recipe["steps"] + 1, 50)]
        assert all(left > right for left, right in pairwise(steps[:-1]) if left and right)


def test_the_curve_goes_through_its_points_and_ends() -> None:
    for tokens, loss in EDU.points:
        assert expected(EDU, tokens) == pytest.approx(loss, abs=1e-9)
    assert expected(EDU, 19_073 * STEP) == EDU.points[-1][1]  # the recipe's own end, one step later
    assert [expected(EDU, tokens) for tokens in (1, 249 * STEP, 19_074 * STEP)] == [None] * 3


def test_points_that_are_left_out_are_found_again() -> None:
    """From points twice as far apart as they are a run's own loss is found again, to less than half the band from step
    750 on; at step 500, where the curve bends most, to 0.2."""
    for run in [*PLAIN[:3], *table()["curves"]["fineweb-124m"]["runs"]]:
        points = points_of(run)[1:]
        for i in range(1, len(points) - 1):
            tokens, loss = points[i]
            error = abs(cubic(points[:i] + points[i + 1 :], tokens) - loss)
            step = tokens // STEP
            assert error < (0.2 if step <= 500 else 0.08 if step < 2_000 else 0.02), (run, step)


@pytest.mark.parametrize("run", PLAIN)
def test_a_right_run_that_the_curve_was_not_made_of_stays_inside(run: str) -> None:
    found = places(run, without(run))
    assert set(found.values()) == {"inside"}
    assert {0, 250, 500, 750, 19_072} <= set(found)


@pytest.mark.parametrize("run", ["agndm_shuffled", "agndm_half_dataset"])
def test_other_orders_of_the_same_text_stay_inside(run: str) -> None:
    assert set(places(run).values()) == {"inside"}


@pytest.mark.parametrize(
    ("run", "inside"),
    [
        ("agndm_no_warmup", {0, 250}),
        ("agndm_smaller", {0}),
        ("agndm_bigger", {0, 250, 500, 1_750}),  # of twice the size: within 0.15 of the curve until step 2,000
    ],
)
def test_another_training_is_seen_at_every_step_but_these(run: str, inside: set[int]) -> None:
    found = places(run)
    assert {step for step, where in found.items() if where == "inside"} == inside
    side = "below" if run == "agndm_bigger" else "above"
    assert {where.removeprefix("far ") for where in found.values()} == {"inside", side}


def test_a_linear_decay_is_seen_at_the_end_only_and_not_by_a_doubled_band() -> None:
    assert [step for step, where in places("agndm_linear_lr").items() if where != "inside"] == [19_072]
    assert set(places("agndm_linear_lr", widened=True).values()) == {"inside"}


def test_a_doubled_band_still_sees_what_is_wrong() -> None:
    assert places("agndm_no_warmup", widened=True)[19_072] == "above"
    assert places("agndm_bigger", widened=True)[19_072] == "below"
    assert places("agndm_smaller", widened=True)[19_072] == "far above"


def test_the_bands() -> None:
    for step, half in ((250, 0.15), (1_999, 0.15), (2_000, 0.05), (19_000, 0.05)):
        loss, (low, high) = expected(EDU, step * STEP), band(EDU, step * STEP) or (0, 0)
        assert (low, high) == pytest.approx((loss - half, loss + half))
        assert band(EDU, step * STEP, widened=True) == pytest.approx((loss - 2 * half, loss + 2 * half))
    assert band(EDU, 0) == (10.8, 11.1)
    assert band(EDU, 19_073 * STEP) == (3.05, 3.08)
    assert band(EDU, 19_073 * STEP, widened=True) == pytest.approx((3.035, 3.095))
    assert band(EDU, 100 * STEP) is None


def test_a_published_run_that_ended_at_4_2_stands_at_step_1000() -> None:
    found = place(EDU, 19_072 * STEP, 4.2)
    assert found
    assert (found.where, found.step) == ("far above", 1_000)
    assert place(EDU, 1_000 * STEP, 4.15).where == "inside"  # type: ignore[union-attr]  # a fix that another program had
    assert place(EDU, 1_000 * STEP, 4.88).where == "far above"  # type: ignore[union-attr]


def test_where_a_right_run_has_a_loss() -> None:
    assert [step_of(EDU, loss) for loss in (10.9, 6.17, 6.1, 3.2847, 3.07, 3.0)] == [0, 0, 260, 6_400, 19_000, None]
    assert step_of(FINEWEB, 4.317) == 1_000


def test_hellaswag_is_due_from_step_12000_on() -> None:
    assert [hellaswag_due(EDU, step * STEP) for step in (11_999, 12_000, 19_073)] == [None, 0.2955, 0.306]
    assert hellaswag_due(FINEWEB, 19_560 * STEP) is None  # nothing is published for that recipe
    final = [table()["runs"][run]["final_hellaswag"] for run in PLAIN if run != "allenporter_fineweb_edu"]
    assert all(score > 0.306 - 2 * EDU.standard_error for score in final)


def test_a_curve_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigError, match=r"no curve 'fineweb-edu', did you mean 'fineweb-edu-124m'\?; possible are"):
        curve("fineweb-edu")
    with pytest.raises(ConfigError, match="no curve 'muon_2024-10-10'"):
        curve("muon_2024-10-10")  # context, never matched


def test_points_are_shared_by_half_of_the_runs() -> None:
    runs: list[Points] = [((0, 1.0), (10, 2.0)), ((0, 3.0),), ((0, 8.0), (20, 9.0))]
    assert middle(runs) == ((0, 3.0),)
