"""A hospital says what to learn from; the mod draws, bounds, adds noise and keeps the account."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from diffsketch.flower import SiloReply, sketch_mod
from diffsketch.silos import RecordGradients
from hospitals_app.task import PLAN, new_model, records_of

app = ClientApp(mods=[sketch_mod(PLAN)])
gradients = RecordGradients(new_model())  # here: a model that mixes patients is refused at once


@app.train()
def train(message: Message, context: Context) -> Message:
    """Reply with this hospital's records."""
    return SiloReply(message, gradients, records_of(int(context.node_config["partition-id"])))
