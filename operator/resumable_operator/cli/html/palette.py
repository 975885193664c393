"""PURE: what each phase is called, means and looks like, the same in every chart and table of the page.

Neighbours differ in lightness, not only in hue, so that they also do for the colour blind; in light and in
dark. Blue is work that counts; warm colours are lost time, from rework to the dark red of an undetected
failure; violets are the way back to training; green is the price of checkpoints; greys are nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass

from resumable_training.contract.metrics import LEDGER_PHASES


@dataclass(frozen=True)
class Look:
    """``light`` and ``dark``: its colour on a light and on a dark page."""

    label: str
    meaning: str
    light: str
    dark: str


PHASES = {
    "productive": Look("Productive", "steps never done before", "#1f5fa3", "#62aef7"),
    "rework": Look("Rework", "steps done again because they were lost", "#dd4b10", "#ee6a2c"),
    "detecting": Look("Detecting", "a failure that nobody had noticed yet", "#8c1c3a", "#ff6f92"),
    "recovering": Look("Recovering", "from a failure until the new ranks meet", "#be6a9e", "#eeb3d6"),
    "resizing": Look("Resizing", "a planned end, until the new ranks meet", "#c98f00", "#e8ae3a"),
    "starting": Look("Starting", "workers and ranks come up for the first time", "#7a69c9", "#7b68d2"),
    "rendezvous": Look("Rendezvous", "ranks find each other", "#a293de", "#a99af0"),
    "restoring": Look("Restoring", "a checkpoint is verified and loaded", "#392a70", "#5a47a6"),
    "warmup": Look("Warm-up", "up to the end of an attempt's first step", "#d3c8f4", "#e0d8fc"),
    "checkpointing": Look("Checkpointing", "training stands still for a save", "#0b8467", "#3cc39c"),
    "evaluating": Look("Evaluating", "declared evaluations", "#17a2a8", "#3fd0cf"),
    "data_stall": Look("Waiting for data", "the loader has no batch ready", "#e0c200", "#f7ea8a"),
    "running_opaque": Look("Running, unknown", "nobody noted what it produced", "#66788a", "#8797a8"),
    "queued": Look("Queued", "no room in the cluster", "#a3aeba", "#66727f"),
    "suspended": Look("Suspended", "on request; not counted", "#c6ced6", "#454f5b"),
    "unaccounted": Look("Unaccounted", "nobody could tell", "#39424d", "#f3f5f7"),
}
NOT_REPORTED = Look("Not reported yet", "ranks train, and will say what they did", "#c6ced6", "#454f5b")
assert set(PHASES) == set(LEDGER_PHASES)

STAGES = {
    "detect": ("Detect", "detecting"),
    "reschedule": ("Reschedule", "recovering"),
    "rendezvous": ("Rendezvous", "rendezvous"),
    "restore": ("Restore", "restoring"),
    "warmup": ("Warm-up", "warmup"),
}  # stage of a recovery: (label, the phase whose colour it has)


def css_class(phase: str) -> str:
    """``p-data-stall``: sets the colour in which an element and what is in it are drawn."""
    return "p-" + phase.replace("_", "-")


def css_rules() -> str:
    """One colour variable per phase, for both kinds of page."""
    light = "".join(f"--{css_class(name)}:{look.light};" for name, look in PHASES.items())
    dark = "".join(f"--{css_class(name)}:{look.dark};" for name, look in PHASES.items())
    classes = "".join(f".{css_class(name)}{{--c:var(--{css_class(name)})}}" for name in PHASES)
    light, dark = f"{light}--unsettled:{NOT_REPORTED.light}", f"{dark}--unsettled:{NOT_REPORTED.dark}"
    classes += ".unsettled{--c:var(--unsettled)}"
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{classes}\n"
