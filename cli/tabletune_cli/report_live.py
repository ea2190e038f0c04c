"""Sections of `tabletune report` on what was measured live: the arms at each load, and how far the prediction of them was off."""

from __future__ import annotations

from tabletune.findings import say_prediction, say_worst_load
from tabletune.prediction import arms_of, relative_error
from tabletune.verdict import Arm, ArmName, Load, VerdictKind, mean_gain
from tabletune.words import percent
from tabletune_cli.explanation import Explanation
from tabletune_cli.losses import ARMS
from tabletune_cli.markup import Html, definitions, element, join, table
from tabletune_cli.report_figures import NOTHING, milliseconds, rate

ARM_NAMES: dict[ArmName, str] = {
    "table": "table",
    "present": "present setting",
    "fixed": "best fixed length",
    "off": "engine without speculation",
}
WHAT_RUNS: dict[VerdictKind, ArmName] = {
    VerdictKind.TABLE: "table",
    VerdictKind.FIXED: "fixed",
    VerdictKind.PRESENT: "present",
    VerdictKind.OFF: "off",
    VerdictKind.BLOCKED: "table",
}


def build_live(e: Explanation) -> Html:
    """The arms at each load, and the gain of what runs over the others, each beside the noise floor."""
    loads = e.stored.table.loads
    if not loads:
        return element("p", "No load was measured live, so nothing is known to pay.")
    runs = WHAT_RUNS[e.stored.table.verdict.kind]
    rivals = [arm for arm in ARMS if arm != runs]
    measured = [(str(x.batch_size), *(_arm(x.arm(arm)) for arm in ARMS)) for x in loads]
    gains = [(str(x.batch_size), *(_gain(e, x.gain(runs, rival)) for rival in rivals)) for x in loads]
    gains.append(("mean", *(_gain(e, mean_gain(loads, runs, rival)) for rival in rivals)))
    assumed = " (assumed, as fewer than three repeats do not tell it)" if e.stored.table.noise_assumed else ""
    worst = say_worst_load(e.stored.table)
    return join(
        (
            table("Output tokens a second ± spread of the repeats", ("B", *(ARM_NAMES[arm] for arm in ARMS)), measured),
            table(
                f"Gain of the {ARM_NAMES[runs]} beside the noise floor",
                ("B", *(f"over {ARM_NAMES[r]}" for r in rivals)),
                gains,
            ),
            definitions((ARM_NAMES[arm], loads[0].arm(arm).setting) for arm in ARMS),
            element(
                "p",
                "All arms on real prompts through the same client and clock; the noise floor of this comparison is "
                f"{percent(e.live_noise)}{assumed}; a gain up to {percent(e.live_threshold)} is none. "
                "The mean is geometric, over all loads.",
            ),
            table(
                "The table against the best fixed length of each load",
                ("B", "best length there", "its tokens a second", "the table's", "gain of the table"),
                [_against_best_fixed(e, x) for x in loads],
            ),
            element("p", "The best length is the better of the one for all loads and of the one that is predicted best at this load."),
            *([element("p", f"Worst load of the table, {worst}.")] if worst else []),
        )
    )


def build_prediction(e: Explanation) -> Html:
    """Each arm as predicted and as measured, and the errors."""
    loads = e.stored.table.loads
    errors = say_prediction(loads)
    if errors is None:
        return element("p", "No arm was both predicted and measured, so nothing is known of the prediction's error.")
    rows = [_compare(x.batch_size, arm) for x in loads for arm in arms_of(x) if arm.predicted is not None]
    head = ("B", "setting", "ms a step, predicted", "measured", "error", "tokens/s, predicted", "measured", "error")
    steps = "steps with a prefill included" if e.stored.profile.prefills() else "decode-only steps"
    return join(
        (
            element("p", element("strong", f"{errors[0].upper()}{errors[1:]}.")),
            table("Predicted and measured, each setting once", head, rows),
            element(
                "p",
                f"Predicted from step times and acceptance, {steps}. Measured: the mean step of the live windows, prefills included. "
                "An error above 0: the prediction was too high.",
            ),
        )
    )


def _against_best_fixed(e: Explanation, x: Load) -> tuple[str, ...]:
    best = x.best_fixed
    gain = x.table.tokens_per_second / best.tokens_per_second - 1
    return (str(x.batch_size), best.setting, rate(best.tokens_per_second), rate(x.table.tokens_per_second), _gain(e, gain))


def _compare(batch_size: int, arm: Arm) -> tuple[str, ...]:
    assert arm.predicted is not None
    micros, goodput = arm.predicted.step_time_micros, arm.predicted.tokens_per_second
    off = percent(relative_error(micros, arm.step_time_micros), sign=True) if arm.step_time_micros else NOTHING
    return (
        str(batch_size),
        arm.setting,
        milliseconds(micros),
        milliseconds(arm.step_time_micros),
        off,
        rate(goodput),
        rate(arm.tokens_per_second),
        percent(relative_error(goodput, arm.tokens_per_second), sign=True),
    )


def _arm(arm: Arm) -> str:
    return f"{rate(arm.tokens_per_second)} ± {rate(arm.tokens_per_second * arm.spread)}"


def _gain(e: Explanation, gain: float) -> str:
    judged = "no gain" if abs(gain) <= e.live_threshold else "faster" if gain > 0 else "slower"
    return f"{percent(gain, sign=True)} (noise {percent(e.live_noise)}): {judged}"
