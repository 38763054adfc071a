"""One ClientApp for all tests on Ray, so that they share the actors: a message says what to do."""

from pathlib import Path

import fakes
from fakes import TinyDataset, tiny_model, tiny_transform
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsim.build import build_private_gradient
from fedsim.engines.client_app import client_app
from fedsim.training.local import LocalSettings
from fedsim.training.trainer import Trainer

PLAIN, PRIVATE, FAILS, DIES_ONCE, ALWAYS_DIES = "plain", "private", "fails", "dies once", "dies"
KIND, VICTIM, MARKER = "kind", "victim", "marker"


def private_app() -> ClientApp:
    model = tiny_model()
    settings = LocalSettings(epochs=1, batch_size=4, learning_rate=0.1, poisson=True)
    gradient = build_private_gradient(model, max_grad_norm=1.0, noise_multiplier=1.0)
    trainer = Trainer(
        model, TinyDataset(), tiny_transform(), settings, seed=5, private_gradient=gradient
    )
    return client_app(trainer)


def app_of_all_kinds() -> ClientApp:
    made: dict[str, ClientApp] = {}
    app = ClientApp()

    def app_for(message: Message) -> ClientApp:
        asked = next(iter(message.content.config_records.values()))
        kind, victim = str(asked.get(KIND, PLAIN)), str(asked.get(VICTIM, ""))
        if kind not in made:
            made[kind] = {
                PLAIN: fakes.tiny_app,
                PRIVATE: private_app,
                FAILS: lambda: fakes.app_that_fails(victim),
                DIES_ONCE: lambda: fakes.app_killed_once(victim, Path(str(asked[MARKER]))),
                ALWAYS_DIES: lambda: fakes.app_always_killed(victim),
            }[kind]()
        return made[kind]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return app_for(message)(message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return app_for(message)(message, context)

    return app
