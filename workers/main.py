"""For Celery's own commands (`celery -A workers.main inspect ping`, `control`) and Flower.

Reads the environment, as every such shim must, and connects to nothing. The service is `headrace worker`.
"""

import models
from models import settings
from workers.app import create_celery

if getattr(models, "OWNER", None) != "headrace":
    raise ImportError(f"another project's `models` comes first on the path: {models.__file__}")

app = create_celery(settings.load())
