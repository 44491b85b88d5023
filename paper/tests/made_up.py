"""Results of training runs that nobody made, and checks of what is drawn from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diffsketch.pages.exhibits import to_csv
from paper.experiments import Experiment
from paper.figures import Figure

MESSAGE = 620  # bytes of a table of 7 x 22


def experiment_of(name: str, drawing: str, **more: Any) -> Experiment:
    """An experiment with the least text."""
    return Experiment(name=name, title="t", place="p", says="s", drawing=drawing, **more)


def curve_of(accuracies: Sequence[float], *, up: int, down: int, **more: Any) -> list[Any]:
    """An evaluation every 10 rounds, the first before any; `up` and `down` are bytes of a round."""
    return [
        {"round": 10 * place, "accuracy": value, "bytes_up": 10 * place * up,
         "bytes_down": 10 * place * down, **more}
        for place, value in enumerate(accuracies)
    ]  # fmt: skip


def run_of(
    curve: Sequence[Any], *, method: str, message: int = MESSAGE, **more: Any
) -> dict[str, Any]:
    """The result of a run of ten workers on MNIST; `more` is its summary's, where it is another."""
    epsilon = {
        "delta": 1e-5, "relation": "replace", "trust": "local", "basis": "none",
        "unit": "client", "value": None, "rounds": 10, **more.pop("epsilon", {}),
    }  # fmt: skip
    epsilon["simulated"] = epsilon["basis"] == "proven"
    last = curve[-1]
    summary = {
        "outcome": "finished", "diverging": False, "rounds": last["round"],
        "accuracy": last["accuracy"], "best_accuracy": max(one["accuracy"] for one in curve),
        "dim": 7850, "message_bytes": message, "bytes_up": last["bytes_up"],
        "bytes_down": last["bytes_down"], "uncompressed_bytes_up": 4 * 7850 * 10 * last["round"],
        "noised_share": None, "epsilon": epsilon,
        "config": {"method": method, **more.pop("config", {})}, **more,
    }  # fmt: skip
    return {"summary": summary, "times": {"training": 2.0}, "curve": list(curve)}


def checked(figure: Figure) -> Figure:
    """The same, if all of it can be shown."""
    for exhibit in (*figure.exhibits, *figure.proven):
        to_csv(exhibit)
    return figure
