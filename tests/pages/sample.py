"""A page that has everything a page can have: for the tests, and for their screenshots."""

from __future__ import annotations

import math

from diffsketch.pages.exhibits import Axis, Mark, Page, Plot, Section, Series, Table
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit

NASTY = "</script><script>throw 'nasty'</script><img src=x onerror=alert(1)> \"q\" & %{x} $2^2$"
CLIENT = Scope(Unit.CLIENT, Relation.REPLACE, Trust.DISTRIBUTED)
COORDINATE = Scope(Unit.COORDINATE, Relation.ADD_OR_REMOVE, Trust.LOCAL)
PROVEN = Epsilon(7.981, 1e-5, 60, Basis.PROVEN, CLIENT)
CLAIMED = Epsilon(1.0, 1e-5, 1, Basis.CLAIMED, COORDINATE)
MEASURED = Epsilon(3.449, 1e-5, 1, Basis.MEASURED, COORDINATE)
NOTHING = Epsilon(math.inf, 1e-5, 60, Basis.NONE, CLIENT)
ROUNDS = tuple(range(1, 61))


def learning(name: str, role: str, speed: float, **more: object) -> Series:
    """A curve of accuracy that is no run's: 1 - exp(-speed * rounds), with a spread."""
    end = 22 if more.get("ended") else 60
    y = tuple(0.93 - 0.83 * math.exp(-speed * r) for r in ROUNDS[:end])
    wide = tuple(0.03 * math.exp(-r / 30) + 0.004 for r in ROUNDS[:end])
    size = {"none": 31400, "diffsketch": 664}.get(role, 1300)
    return Series(
        name,
        tuple(float(size * 10 * r) for r in ROUNDS[:end]),
        y,
        tuple(a - b for a, b in zip(y, wide, strict=True)),
        tuple(a + b for a, b in zip(y, wide, strict=True)),
        kind="band",
        role=role,
        other_x={
            "rounds": tuple(map(float, ROUNDS[:end])),
            "seconds": tuple(0.1 * r * (1 + 5 * speed) for r in ROUNDS[:end]),
        },
        **more,  # type: ignore[arg-type]
    )


ACCURACY = Plot(
    "accuracy",
    "Test accuracy over what was sent",
    Axis("bytes from all workers", log=True),
    Axis("test accuracy", percent=True),
    (
        learning("none", "none", 0.3, epsilon=NOTHING),
        learning("DiffSketch 50x", "diffsketch", 0.12, dashed=True, epsilon=CLAIMED,
                 epsilon_text="ε = 1 a round", note="mean of five seeds"),
        learning("sketch + Skellam", "sketch-skellam", 0.08, epsilon=PROVEN),
        learning("sketch + Laplace", "sketch-laplace", 0.05, ended="diverged in round 22"),
    ),
    "Bands are the standard deviation over five seeds. Less is sent for the same accuracy with "
    "sketches; what is proven costs more rounds.",
    marks=(Mark(0.9, "accuracy of the paper"),),
    other_x=(Axis("rounds"), Axis("seconds")),
)  # fmt: skip
ERRORS = Plot(
    "error",
    "Relative error against compression",
    Axis("compression", log=True),
    Axis("relative error"),
    (
        Series("DiffSketch 50x", (2.0, 5.0, 10.0, 50.0, 100.0), (1.0, 1.9, None, 6.9, 9.8),
               role="diffsketch"),
        Series("sketch + Skellam", (2.0, 5.0, 10.0, 50.0, 100.0), (1.4, 2.4, 3.9, 8.2, 12.0),
               (1.2, 2.1, 3.5, 7.7, 11.0), (1.6, 2.7, 4.3, 8.9, 13.0), kind="points",
               role="sketch-skellam"),
    ),
    "Errors grow with the square root of the compression.",
    marks=(Mark(50.0, "as in the paper", axis="x"),),
)  # fmt: skip
PRIVACY = Plot(
    "privacy",
    "What was claimed, and what an audit measured",
    Axis("case"),
    Axis("epsilon"),
    (
        Series("claimed", (0.0, 1.0, 2.0), (1.0, 2.0, 4.0), kind="bars", dashed=True),
        Series("measured", (0.0, 1.0, 2.0), (3.4, 0.4, 5.5), (3.0, 0.3, 5.0), (3.8, 0.5, 6.0),
               kind="bars"),
    ),
    "A measured bound above the claim contradicts it.",
    marks=(Mark(3.449, "audit, lower bound", epsilon=MEASURED),),
    categories=("Theorem 1", "Skellam", "without noise, and a long name"),
)  # fmt: skip
HISTOGRAM = Plot(
    "histogram",
    "How gradients are distributed",
    Axis("value"),
    Axis("density", log=True),
    (
        Series("gradients", tuple(-3 + 0.3 * i for i in range(21)),
               tuple(math.exp(-0.8 * abs(-2.85 + 0.3 * i)) for i in range(20)), kind="steps"),
        Series("Gaussian fit", tuple(-3 + 0.1 * i for i in range(61)),
               tuple(0.6 * math.exp(-0.5 * (-3 + 0.1 * i) ** 2) for i in range(61)),
               role="reference", dashed=True),
    ),
)  # fmt: skip
NASTY_PLOT = Plot(
    "nasty",
    NASTY,
    Axis(NASTY),
    Axis(NASTY),
    (Series(NASTY, (0.0, 1.0, math.nan), (1.0, math.inf, 2.0), ended=NASTY, note=NASTY),
     Series("_hidden", (0.0, 1.0), (1.0, 3.0), kind="points", dashed=True)),
    NASTY,
    marks=(Mark(1.5, NASTY),),
)  # fmt: skip
CLAIMS = Table(
    "claims",
    "The paper's claims, one by one",
    ("claim", "verdict", "accuracy", "privacy", "bytes"),
    (
        ("DiffSketch learns at 50x as well as without compression on MNIST, in the same number "
         "of rounds", "holds in part: 1.2 points below", 0.9132, CLAIMED, 664),
        ("The bare sketch is private", "fails: the audit contradicts it", None, MEASURED, 31400),
        ("Messages are smaller", "holds", 0.9, PROVEN, 1300),
        (NASTY, "not measured", None, None, None),
    ),
    "Verdicts follow from the numbers.",
)  # fmt: skip
SETTINGS = Table(
    "settings",
    "Settings",
    ("setting", "value", "why"),
    (("rounds", 60, "as in the paper"), ("momentum", True, None), ("step", 0.1, "tuned")),
)
PAGE = Page(
    "The paper's evaluation, once more",
    "Every figure with its numbers, and beside it what is proven. Made by `python -m paper`.",
    (
        Section(
            "claims",
            "What became of the claims",
            "Of four claims one holds, one holds in part, one fails.",
            (CLAIMS,),
        ),
        Section(
            "mnist",
            "Accuracy and communication",
            "At a fiftieth of the bytes the accuracy is 2 points lower.",
            (ACCURACY, ERRORS, PRIVACY),
            ("Each point is the mean of five runs with the same mini-batches.",),
            {"the paper says": "It is 5 better.", "to the letter": NASTY, "proven": "1 point"},
            ("Bytes are counted with headers.",),
            {"Settings of all runs": (SETTINGS,)},
            "Figure 3",
        ),
        Section("shape", "Distributions", "", (HISTOGRAM, NASTY_PLOT), badge=NASTY[:24]),
    ),
    "Reduced run: two seeds in place of five, a tenth of the rounds.",
    {"command": "`python -m paper --quick`", "seeds": "0, 1", "versions": f"1 & 2 {NASTY}"},
    ("sketch-laplace", "none", "sketch-skellam"),
)
