"""Passwords in addresses are never shown, wherever they stand."""

import pytest

from models import settings


@pytest.mark.parametrize(("url", "shown"), [
    ("postgresql://me:s3cret@db/headrace", "postgresql://me:***@db/headrace"),
    ("postgresql://me:s3c@cret@db:5432/headrace", "postgresql://me:***@db:5432/headrace"),
    ("postgresql://me:s3#c?ret@db/headrace", "postgresql://me:***@db/headrace"),
    ("postgresql://db/headrace?user=me&password=s3cret&sslmode=require",
     "postgresql://db/headrace?user=me&password=***&sslmode=require"),
    ("postgresql:///headrace?sslpassword=s3cret", "postgresql:///headrace?sslpassword=***"),
    ("redis://:s3cret@[::1]:6379/0", "redis://:***@[::1]:6379/0"),
    ("sentinel://:s3cret@a:1;sentinel://:s3cret@b:2", "sentinel://:***@a:1;sentinel://:***@b:2"),
    ("sqlite:////var/headrace.db", "sqlite:////var/headrace.db"),
    ("redis://me@host/0", "redis://me@host/0"),
])
def test_a_password_in_an_address_is_not_shown(url: str, shown: str) -> None:
    assert settings.mask_url(url) == shown
