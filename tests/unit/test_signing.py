"""Signatures that the stock package accepts, and the other way round."""

import base64
import json
from datetime import UTC, datetime

import pytest
import standardwebhooks

from models import signing

BODY = json.dumps({"type": "job.succeeded", "text": "Grüße €"}, ensure_ascii=False).encode()
NOW_S = int(datetime.now(UTC).timestamp())


def now_s() -> int:
    """The clock of those who verify."""
    return int(datetime.now(UTC).timestamp())


def test_a_secret_is_whsec_and_standard_base64_of_36_bytes_without_padding():
    for _ in range(50):
        secret = signing.new_secret()
        assert secret.startswith("whsec_")
        assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 36
        assert not secret.endswith("=")


def test_the_stock_package_verifies_our_headers():
    secret = signing.new_secret()
    headers = signing.headers([secret], "evt_1", now_s(), BODY)
    assert standardwebhooks.Webhook(secret).verify(BODY, headers)["type"] == "job.succeeded"


def test_our_signature_equals_the_stock_packages():
    secret = signing.new_secret()
    stock = standardwebhooks.Webhook(secret).sign("evt_1", datetime.fromtimestamp(NOW_S, UTC), BODY.decode())
    assert signing.sign([secret], "evt_1", NOW_S, BODY) == stock


def test_while_a_secret_is_rotated_receivers_with_either_verify():
    old, new = signing.new_secret(), signing.new_secret()
    headers = signing.headers([new, old], "evt_1", now_s(), BODY)
    assert len(headers["webhook-signature"].split(" ")) == 2
    for secret in (old, new):
        standardwebhooks.Webhook(secret).verify(BODY, headers)
        assert signing.verify(secret, headers, BODY) == "evt_1"


def test_verify_takes_header_names_in_any_case():
    secret = signing.new_secret()
    headers = {name.title(): value for name, value in signing.headers([secret], "evt_1", now_s(), BODY).items()}
    assert signing.verify(secret, headers, BODY) == "evt_1"


@pytest.mark.parametrize(("change", "words"), [
    ({"webhook-id": "evt_2"}, "no signature fits"),
    ({"webhook-timestamp": str(NOW_S + 1)}, "no signature fits"),
    ({"webhook-timestamp": str(NOW_S - 301)}, "away from this clock"),
    ({"webhook-timestamp": str(NOW_S + 400)}, "away from this clock"),
    ({"webhook-timestamp": "soon"}, "not a number"),
    ({"webhook-timestamp": "\N{ARABIC-INDIC DIGIT ONE}"}, "not a number"),
    ({"webhook-signature": "v1a,AAAA v1,!!!"}, "no signature fits"),
    ({"webhook-signature": ""}, "no signature fits"),
])
def test_a_changed_header_is_refused(change, words):
    secret = signing.new_secret()
    headers = signing.headers([secret], "evt_1", NOW_S, BODY) | change
    with pytest.raises(signing.SignatureInvalid, match=words):
        signing.verify(secret, headers, BODY, now_s=NOW_S)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_missing_header_is_named(name):
    secret = signing.new_secret()
    headers = signing.headers([secret], "evt_1", now_s(), BODY)
    del headers[name]
    with pytest.raises(signing.SignatureInvalid, match=name):
        signing.verify(secret, headers, BODY)


def test_a_changed_body_and_a_strangers_secret_are_refused():
    secret = signing.new_secret()
    headers = signing.headers([secret], "evt_1", now_s(), BODY)
    for key, body in ((secret, BODY + b" "), (signing.new_secret(), BODY)):
        with pytest.raises(signing.SignatureInvalid):
            signing.verify(key, headers, body)


def test_a_hint_shows_only_the_end_of_a_secret():
    secret = signing.new_secret()
    assert signing.hint(secret) == f"whsec_…{secret[-4:]}"
