"""`diffsketch plan`: from a target and a number of bytes to a method."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from diffsketch.cli.errors import errors_in_one_line
from diffsketch.cli.names import RelationName, SamplingName, TrustName, UnitName
from diffsketch.errors import ArgumentError

__all__ = ["EPILOG", "plan"]

EPILOG = (
    "Examples: [bold]diffsketch plan --dim 7850 --workers 1000 --rounds 100 --epsilon 4 "
    "--bytes 2000[/bold], [bold]diffsketch plan --dim 7850 --population 6000 --cohort 1000 "
    "--rounds 60 --epsilon 8 --bytes 500[/bold]"
)


def plan(
    context: typer.Context,
    dim: Annotated[int, typer.Option(help="Length of the vectors, such as gradients.")],
    rounds: Annotated[int, typer.Option(help="Rounds of the whole run.")],
    epsilon: Annotated[
        float, typer.Option(help="Target: the most that the run may cost any client.")
    ],
    message_bytes: Annotated[
        int, typer.Option("--bytes", help="The most bytes of one client's message in a round.")
    ],
    workers: Annotated[
        int | None, typer.Option(help="Workers, if all of them send a message in each round.")
    ] = None,
    population: Annotated[
        int | None, typer.Option(help="Clients that the cohort of a round is drawn from.")
    ] = None,
    cohort: Annotated[
        int | None, typer.Option(help="Clients that send a message in a round.")
    ] = None,
    sampling: Annotated[
        SamplingName,
        typer.Option(
            help="How a cohort is drawn: in passes over all clients, uniformly, by examples, or "
            "each client on its own and in secret."
        ),
    ] = SamplingName.shuffled,
    delta: Annotated[
        float, typer.Option(help="Delta of the target; 0 for pure differential privacy.")
    ] = 1e-5,
    unit: Annotated[
        UnitName, typer.Option(help="What is protected: a client, or (far weaker) a coordinate.")
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
        float, typer.Option(help="Norm of a client's vector; longer ones are clipped.")
    ] = 1.0,
    spread: Annotated[
        float,
        typer.Option(help="Variance among the vectors over what they have in common; 0: all same."),
    ] = 0.0,
    alternatives: Annotated[int, typer.Option(help="Other methods to list, at most.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    code: Annotated[
        bool, typer.Option("--code", help="Print Python code that runs the best plan.")
    ] = False,
) -> None:
    """Find the private method with the least error for a budget of epsilon and of bytes.

    Compares the private methods of `diffsketch run`, each with its best settings, and predicts
    their errors. Says how to run the best one.
    """
    with errors_in_one_line(context):
        import json

        from diffsketch import planning as logic

        if as_json and code:
            raise ArgumentError("--json and --code do not go together: the JSON has the code, too")
        if workers is not None and (cohort is not None or population is not None):
            raise ArgumentError("--workers stands for --cohort and --population: leave them out")
        each = cohort if workers is None else workers
        if each is None:
            raise ArgumentError("--cohort must be given, or --workers if all take part each round")
        request = logic.PlanRequest(
            dim=dim, cohort=each, population=population, sampling=sampling.value, rounds=rounds,
            target_epsilon=epsilon, delta=delta, message_bytes=message_bytes,
            unit=logic.Unit(unit), relation=logic.Relation(relation), trust=logic.Trust(trust),
            vector_norm=norm, spread=spread,
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
