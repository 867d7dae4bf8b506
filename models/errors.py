"""Every error that a user can meet, one root. Docstrings are the public text; statuses live in `api`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request: where (JSON pointer), which rule, and what to do."""

    pointer: str
    rule: str
    detail: str


class HeadraceError(Exception):
    """Something went wrong."""

    code = "internal"
    retryable = False
    retry_after_s = 1.0  # when to try again, where that can help

    def __init__(self, detail: str = "", *, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(detail or (self.__doc__ or self.code).strip())
        self.detail = str(self)
        self.faults = faults


class InvalidJson(HeadraceError):
    """The body is not valid JSON."""

    code = "invalid_json"


class InvalidRequest(HeadraceError):
    """Some fields of the request are wrong."""

    code = "invalid_request"


class Unauthenticated(HeadraceError):
    """A valid API key is required: send `Authorization: Bearer hr_…`."""

    code = "unauthenticated"


class Forbidden(HeadraceError):
    """The API key lacks the scope that this call needs."""

    code = "forbidden"


class NotFound(HeadraceError):
    """There is no such object."""

    code = "not_found"


class MethodNotAllowed(HeadraceError):
    """The path does not answer that method."""

    code = "method_not_allowed"


class ModelNotFound(HeadraceError):
    """There is no network of that name and version."""

    code = "model_not_found"


class ModelNotReady(HeadraceError):
    """The network has not been accepted yet."""

    code = "model_not_ready"
    retryable = True


class ModelExists(HeadraceError):
    """That version exists with other content; choose another version."""

    code = "model_exists"


class InputInvalid(HeadraceError):
    """The input does not fit the network's signature."""

    code = "input_invalid"


class PayloadTooLarge(HeadraceError):
    """The body is larger than this service accepts."""

    code = "payload_too_large"


class RequestTimeout(HeadraceError):
    """The body of the request stopped arriving."""

    code = "request_timeout"
    retryable = True


class UnsupportedMediaType(HeadraceError):
    """The body must be `application/json`."""

    code = "unsupported_media_type"


class IdempotencyMismatch(HeadraceError):
    """That Idempotency-Key was used with another request."""

    code = "idempotency_mismatch"


class IdempotencyInProgress(HeadraceError):
    """A request with that Idempotency-Key is still being accepted; try again in a second."""

    code = "idempotency_in_progress"
    retryable = True


class RateLimited(HeadraceError):
    """Too many requests; try again later."""

    code = "rate_limited"
    retryable = True


class NotAdmitted(HeadraceError):
    """More work waits than can be taken on."""

    retryable = True

    def __init__(self, detail: str = "", *, retry_after_s: float = 1.0,
                 estimated_wait_s: float | None = None, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(detail, faults=faults)
        self.retry_after_s = retry_after_s
        self.estimated_wait_s = estimated_wait_s


class TooManyInFlight(NotAdmitted):
    """The tenant has as many jobs in flight as it may; try again when some have ended."""

    code = "rate_limited"


class QueueFull(NotAdmitted):
    """More work waits than is taken on; try again when `Retry-After` says."""

    code = "queue_full"


class DeadlineUnmeetable(NotAdmitted):
    """The job could not end before its deadline."""

    code = "deadline_unmeetable"


class ResultNotReady(HeadraceError):
    """The result does not exist yet."""

    code = "result_not_ready"
    retryable = True


class ResultExpired(HeadraceError):
    """The result was removed at the end of its retention."""

    code = "result_expired"


class Unavailable(HeadraceError):
    """The database is out of reach; try again shortly."""

    code = "unavailable"
    retryable = True

    def __init__(self, detail: str = "", *, may_have_been_accepted: bool = False) -> None:
        super().__init__(detail)
        self.may_have_been_accepted = may_have_been_accepted


class SettingsInvalid(HeadraceError):
    """The settings cannot be used."""

    code = "settings_invalid"


class SchemaUnfit(HeadraceError):
    """The database's schema does not fit this version."""

    code = "schema_unfit"


class NetworkRejected(HeadraceError):
    """The network cannot be served; the reason says why."""

    code = "network_rejected"


class EngineUnavailable(HeadraceError):
    """The engine cannot be loaded on this machine."""

    code = "engine_unavailable"
    retryable = True


class HardwareMissing(HeadraceError):
    """The machine lacks what the hardware class asks for."""

    code = "hardware_missing"
