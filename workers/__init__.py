"""Celery consumers, engines and housekeeping."""
