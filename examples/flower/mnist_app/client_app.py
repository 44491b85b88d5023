"""The client: an app as Flower's tutorials have it, and one line for the sketches."""

from __future__ import annotations

import time

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from diffsketch.flower import sketch_mod
from mnist_app.task import model_of, plan_of, task_of, train

app = ClientApp(mods=[sketch_mod(lambda context: plan_of(context.run_config))])


@app.train()
def train_model(message: Message, context: Context) -> Message:
    """Train the model of the message on this node's own images."""
    task, config = task_of(context.run_config), context.run_config
    model = model_of(config, message.content.array_records["arrays"])
    time.sleep(float(config["pause"]))
    examples = train(model, task, int(context.node_config["partition-id"]), config)
    metrics = MetricRecord({"num-examples": examples})
    arrays = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
