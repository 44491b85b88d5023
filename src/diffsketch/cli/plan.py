"""`diffsketch plan`: from a target and a number of bytes to a method."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from diffsketch.cli.errors import errors_in_one_line
from diffsketch.cli.names import RelationName, TrustName, UnitName
from diffsketch.errors import ArgumentError

__all__ = ["EPILOG", "plan"]

EPILOG = (
    "Example: [bold]diffsketch plan --dim 7850 --workers 1000 --rounds 100 --epsilon 4 "
    "--delta 1e-5 --unit client --trust distributed --bytes 2000[/bold]"
)


def plan(
    context: typer.Context,
    dim: Annotated[int, typer.Option(help="Length of the vectors, such as gradients.")],
    workers: Annotated[int, typer.Option(help="Workers that send a message in each round.")],
    rounds: Annotated[int, typer.Option(help="Rounds that the target is for, all together.")],
    epsilon: Annotated[float, typer.Option(help="Target: the most that all rounds may cost.")],
    message_bytes: Annotated[
        int, typer.Option("--bytes", help="The most bytes of one worker's message in a round.")
    ],
    delta: Annotated[
        float, typer.Option(help="Delta of the target; 0 for pure differential privacy.")
    ] = 1e-5,
    unit: Annotated[
        UnitName, typer.Option(help="Whose data is protected: coordinate is the weakest unit.")
    ] = UnitName.client,
    relation: Annotated[
        RelationName, typer.Option(help="Whether neighbours lack the unit or have another one.")
    ] = RelationName.replaced,
    trust: Annotated[
        TrustName,
        typer.Option(
            help="Whom to trust: nobody (local), a secure sum (distributed) or a server (central)."
        ),
    ] = TrustName.distributed,
    norm: Annotated[
        float, typer.Option(help="Norm of a unit's vector; longer ones are clipped.")
    ] = 1.0,
    spread: Annotated[
        float,
        typer.Option(help="Variance among the vectors over what they have in common; 0: all same."),
    ] = 0.0,
    examples: Annotated[
        int, typer.Option(help="Examples of each worker, for the unit example.")
    ] = 1,
    alternatives: Annotated[int, typer.Option(help="Other methods to list, at most.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    code: Annotated[
        bool, typer.Option("--code", help="Print Python code that runs the best plan.")
    ] = False,
) -> None:
    """Find the private method with the least error for a budget of epsilon and of bytes.

    Compares vectors and sketches with several kinds of noise, and predicts their errors.
    """
    with errors_in_one_line(context):
        import json

        from diffsketch import plan as logic

        if as_json and code:
            raise ArgumentError("--json and --code do not go together: the JSON has the code, too")
        request = logic.PlanRequest(
            dim=dim, workers=workers, rounds=rounds, target_epsilon=epsilon, delta=delta,
            unit=logic.Unit(unit), relation=logic.Relation(relation), trust=logic.Trust(trust),
            message_bytes=message_bytes, vector_norm=norm, spread=spread, examples=examples,
        )  # fmt: skip
        found = logic.plan(request, alternatives=alternatives)
        if as_json:
            typer.echo(json.dumps(logic.to_data(found), indent=2))
        elif code:
            typer.echo(logic.python_code(found.best, request), nl=False)
        else:
            console = Console()
            for part in logic.report(found):
                console.print(part, highlight=False)
