"""What schemathesis can't know of this API: how long a program may run, and what a no must say."""

import json
import os

import schemathesis

# Objects that are really there, by the name of their id: made by the test, so that more than 404s is seen.
REAL = json.loads(os.environ["SANDBOXD_TEST_REAL"])


def integral(value):
    """JSON Schema calls 1.0 an integer; on this wire integers are written without a point."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: integral(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [integral(inner) for inner in value]
    return value


@schemathesis.hook
def before_call(ctx, case, kwargs):
    """Programs that are generated never run for long. An id that was made up, and has the form of one, becomes a real
    one; one that came from an answer (it begins with the time) stays, as does one that is to be deleted."""
    for name, real in REAL.items():
        given = (case.path_parameters or {}).get(name)
        made_up = isinstance(given, str) and given[:3] == real[:3] and len(given) == len(real) and given[:7] != real[:7]
        deletes = case.method == "DELETE" and case.path.endswith("{%s}" % name)
        if made_up and given.isascii() and given[3:].isalnum() and not deletes:
            case.path_parameters[name] = real
    if isinstance(case.body, dict) and case.path.endswith(("/execs", "/exec")) and case.method == "POST":
        if case.body.get("timeout_ms", 0) is None or "timeout_ms" not in case.body:
            case.body["timeout_ms"] = 2000


@schemathesis.hook
def map_body(ctx, body):
    return integral(body)


@schemathesis.check
def a_no_names_its_reason(ctx, response, case):
    """Every error has a code, a class and the request's id; one about a field names it."""
    if response.status_code < 400 or response.status_code == 416 or case.method == "HEAD":
        return
    error = response.json()["error"]
    if "idempotency-replayed" not in response.headers:  # that has the id of the request that it answered first
        assert error["request_id"] == response.headers["x-request-id"][0], "the request id of header and body differ"
    assert error["code"] and error["class"] and error["message"], f"an error without words: {error}"
    if response.status_code == 422:
        assert error["details"].get("field") is not None, f"a 422 that names no field: {error}"
    if error["code"] == "invalid_path":
        assert error["details"].get("reason"), f"an invalid path without a reason: {error}"
