"""The smallest table that compression may come down to at no cost, at a fixed proven epsilon.

The noise that a guarantee takes is, in every estimated coordinate, the same for a table of any
size: its part of the error is `dim (sigma / n)^2 / ||mean||^2`, and collisions add `dim / cells`.
So compression is free as long as the second is small beside the first: from some
`n^2 ||mean||^2 / sigma^2` cells on, however long the vectors are. With `sigma` of a target epsilon
that is `n^2 epsilon^2` but for logarithms and constants, which Chen et al. (2022, "The Fundamental
Price of Secure Aggregation in Differentially Private Federated Learning", arXiv 2203.03761) show to
be necessary as well (in bits). Here both parts come from the methods' own claims and forecasts,
beside training runs with tables of several sizes.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from diffsketch.errors import ArgumentError, check
from diffsketch.planning import Option, PlanRequest, Relation
from diffsketch.planning.search import option_at
from diffsketch.privacy.claim import Trust
from paper.experiments import Experiment, Results
from paper.figures import Figure, Record, draw, mean_and_spread
from paper.figures_trained import trained

ALLOWANCE = 0.1
"""A table costs nothing if its error is at most this share above that of the dense mean."""

_CELL_BYTES, _MOST_BYTES = 16, 1 << 40  # of a request: any message fits
_POINT = 0.01  # of accuracy that a table may lose and still be called free


@dataclass(frozen=True)
class FreeSize:
    """The smallest table that costs nothing, beside the dense mean with the same epsilon.

    Attributes:
        request: What was asked, with room for any message.
        dense: The vectors themselves under the same noise, as in DP-FedAvg.
        smallest: The smallest table that costs nothing; `dense` if every table costs something.
    """

    request: PlanRequest
    dense: Option
    smallest: Option

    @property
    def cells(self) -> int:
        """Cells of the smallest message that costs nothing: `dim` if no table does."""
        return self.smallest.method.message_format.cell_count

    @property
    def theory(self) -> float:
        """The theory's cells, without constants and logarithms: `n^2 epsilon^2 / rounds`.

        A run's epsilon is some `sqrt(rounds)` times that of each round that a client pays for. It
        is a theory of secure sums and trusted servers, and not of local trust.
        """
        request = self.request
        return (request.cohort * request.target_epsilon) ** 2 / request.paying_rounds


def free_size(request: PlanRequest) -> FreeSize:
    """Find the smallest table whose error is at most `ALLOWANCE` above that of the dense mean.

    Both have the request's epsilon, proven for the trust that it names: Skellam noise under a
    secure sum, discrete Gaussian noise elsewhere, on one row. `request.message_bytes` does not
    count.

    Guarantees (`paper/tests/test_free_size.py`): the table is within the allowance, and one of 2%
    fewer cells is not; it is the same for all vectors that are far longer; simulated errors agree.

    Raises:
        ArgumentError: Nothing is proven for the unit, the delta or the trust.

    >>> wanted = {"cohort": 1000, "rounds": 1, "target_epsilon": 1.0, "message_bytes": 6}
    >>> [free_size(PlanRequest(dim=dim, **wanted)).cells for dim in (10**4, 10**7)]
    [10000, 178083]
    """
    law = "skellam" if request.trust is Trust.DISTRIBUTED else "gaussian"
    roomy = replace(request, message_bytes=min(_CELL_BYTES * request.dim + 64, _MOST_BYTES))
    dense = option_at(roomy, law, request.dim)
    if dense is None:
        raise ArgumentError(
            f"no dense mean has a proven epsilon of {request.target_epsilon:g} at delta "
            f"{request.delta:g} for the {request.unit} unit and {request.trust} trust"
        )

    def costs_nothing(cells: int) -> bool:
        option = option_at(roomy, f"sketch-{law}", cells)
        return option is not None and option.error.total <= (1 + ALLOWANCE) * dense.error.total

    # Collisions fall with the cells; a table as long as the vector is none.
    cells = 1 + bisect_left(range(1, request.dim), True, key=costs_nothing)
    smallest = option_at(roomy, f"sketch-{law}", cells) if cells < request.dim else None
    return FreeSize(roomy, dense, smallest or dense)


# --- the figure: accuracy over table size ----------------------------------------------------


def draw_free(experiment: Experiment, results: Results) -> Figure:
    """A plot for each cohort, one of all together over the planner's size, and a table.

    Option `spread`: that of the planner's request; the norm is the clip. Each panel has one dense
    mean; its other runs are tables.

    Guarantees (`paper/tests/test_free.py`): gaps are means of differences seed by seed; the
    planner is asked about the very settings of the runs.
    """
    by_panel: dict[str, list[Record]] = {}
    for line in trained(experiment, results)["lines"]:
        by_panel.setdefault(line["panel"], []).append(line)
    tables, dense, panels = list[Record](), list[Record](), list[Record]()
    smallest: list[float] = []
    for panel, lines in by_panel.items():
        whole = [line for line in lines if "rows" not in line["config"]]
        check(len(whole) == 1, "panel", "have one dense mean", panel)
        size = free_size(_request_of(whole[0], experiment.options["spread"]))
        sketched = _tables_of(lines, whole[0], size)
        chosen = next((table for table in sketched if table["cells"] >= size.cells), None)
        smallest.append(sketched[0]["gap"])
        epsilon = whole[0]["epsilon"]
        scope = f"Epsilons are of the whole run at delta = {epsilon.delta:g} ({epsilon.terms()})."
        about = {name: whole[0]["config"][name] for name in ("cohort", "budget")}
        about |= {"scope": scope, "chosen": chosen is not None}
        tables += [{**table, **about} for table in sketched]
        summary = {**_panel_of(whole[0], size, chosen), **about}
        panels.append(summary)
        # A line across the plot, from the smallest table to the vector itself.
        ends = (sketched[0]["cells"], whole[0]["dim"])
        dense += [{**summary, "cells": cells, "low": None, "high": None} for cells in ends]
    gaps = [panel["gap"] for panel in panels if panel["gap"] is not None]
    every = {
        "panels": len(panels),
        "predicted": len(gaps),  # the planner finds a table smaller than the vector
        "free": sum(gap >= -_POINT for gap in gaps),  # and it was measured to be free
        "mean": statistics.fmean(gaps) if gaps else None,
        "worst": min(gaps, default=None),
        "smallest": statistics.fmean(smallest),
        "nothing": 0.0,
        "same": 1.0,
    }
    return draw(experiment, {"tables": tables, "dense": dense, "panels": panels, "all": [every]})


def _request_of(line: Record, spread: float) -> PlanRequest:
    """The planner's request: the very settings of a run."""
    config = line["config"]
    return PlanRequest(
        dim=line["dim"], cohort=config["cohort"], population=config["workers"],
        rounds=config["rounds"], target_epsilon=config["budget"], delta=config["delta"],
        sampling=config["sampling"], relation=Relation(config.get("relation", "replace")),
        vector_norm=config["clip"], spread=spread, message_bytes=6,
    )  # fmt: skip


def _tables_of(lines: Sequence[Record], dense: Record, size: FreeSize) -> list[Record]:
    """The tables of a panel, the smallest first, with their accuracies less the dense mean's."""
    tables = []
    for line in lines:
        if line is not dense:
            cells = line["config"]["rows"] * line["config"]["cols"]
            pairs = zip(line["accuracies"], dense["accuracies"], strict=True)
            gap, spread = mean_and_spread([mine - theirs for mine, theirs in pairs])
            tables.append({**line, "cells": cells, "times": cells / size.cells, "gap": gap,
                           "gap_spread": spread})  # fmt: skip
    return sorted(tables, key=lambda table: int(table["cells"]))


def _panel_of(dense: Record, size: FreeSize, chosen: Record | None) -> Record:
    """The planner's answer beside the smallest table that was run with as many cells or more."""
    alike = free_size(replace(size.request, spread=0.0))
    nearest = chosen or {}
    return {
        **dense,
        "allowance": ALLOWANCE,
        "paying_rounds": size.request.paying_rounds,
        "theory": size.theory,
        "in_reach": size.theory <= dense["dim"],
        "cells": size.cells,
        "cells_alike": alike.cells,
        "chosen_cells": nearest.get("cells"),
        "chosen_accuracy": nearest.get("accuracy"),
        "gap": nearest.get("gap"),
        "gap_spread": nearest.get("gap_spread"),
        "fewer": chosen and chosen["compression"] / dense["compression"],
    }
