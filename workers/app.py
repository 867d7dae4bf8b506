"""The Celery application: the contract's settings, the batching task, the bootstep that runs the engines."""

from collections.abc import Callable
from typing import Any

from celery import Celery

from models import contract
from models.settings import Settings
from workers import runtime, strategy


def create_celery(settings: Settings) -> Celery:
    """An application for workers, `inspect`, `control` and Flower. Connects to nothing by itself."""
    app = Celery("headrace", set_as_current=False, strict_typing=False)
    app.conf.update(contract.celery_settings(settings.broker), worker_consumer="workers.consumer:Consumer")
    running: list[runtime.Runtime] = []

    def open_intake(task: Any, consumer: Any) -> Callable[..., None]:
        return running[-1].intake.open(task, consumer)

    app.register_task(strategy.task_class(open_intake)())
    app.steps["worker"].add(runtime.step(settings, running.append))
    return app
