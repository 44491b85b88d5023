"""Means of the metrics that clients chose to send."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flwr.app import MetricRecord, RecordDict

__all__ = ["mean_metrics"]


def mean_metrics(contents: Sequence[RecordDict]) -> MetricRecord | None:
    """The plain mean of each number that all replies have; None if there is none.

    Clients count alike. Lists, and what is not finite, are left out.
    """
    found: list[dict[str, float]] = []
    for content in contents:
        values = [pair for record in content.metric_records.values() for pair in record.items()]
        found.append(
            {
                name: float(value)
                for name, value in values
                if isinstance(value, int | float) and math.isfinite(value)
            }
        )
    common = set.intersection(*(set(one) for one in found)) if found else set()
    if not common:
        return None
    return MetricRecord({name: sum(one[name] for one in found) / len(found) for name in common})
