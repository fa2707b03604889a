"""The OpenAPI document: the lane's paths, which FastAPI does not serve, ways to send a key, error shapes."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.errors import Unavailable
from api.wire_schemas import LANE, SCHEMAS, LanePath

ERRORS = {
    "400": "The request is wrong; `param` names the field.",
    "401": "No valid API key.",
    "403": "The key lacks a scope.",
    "404": "No such path, model or thing.",
    "413": "The body is too long.",
    "429": "A limit or budget is reached; see Retry-After and x-should-retry.",
    "500": "The gateway failed.",
    "503": "Something behind the gateway is away; see Retry-After.",
}


def lane_routes(app: FastAPI) -> None:
    """Routes for the lane's paths, so that they stand in the document and other methods than POST get a 405.

    A POST on them is answered by the server's protocol class before it could come here.
    """
    for path in LANE:
        app.add_api_route(
            f"/v1/{path.endpoint}",
            without_lane,
            methods=["POST"],
            summary=path.summary,
            tags=["Inference"],
            operation_id=path.endpoint.replace("/", "_"),
            openapi_extra={"requestBody": request_body(path)},
            responses={200: answers(path)},
        )


async def without_lane() -> None:
    raise Unavailable("This server runs without its chat lane; start it as `python -m api`.", "lane_missing")


def request_body(path: LanePath) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{path.request}"}
    return {
        "required": True,
        "content": {"application/json": {"schema": schema, "example": path.example}},
    }


def answers(path: LanePath) -> dict[str, Any]:
    content: dict[str, Any] = {
        "application/json": {"schema": {"$ref": f"#/components/schemas/{path.response}"}}
    }
    if path.stream is not None:
        content["text/event-stream"] = {"schema": {"type": "string", "description": path.stream}}
    return {"description": "The engine's answer, as it came.", "content": content}


def describe(app: FastAPI) -> None:
    """Makes `app.openapi()` the whole document; it is built at the first request for it."""
    app.openapi = document(app)  # type: ignore[method-assign]


def document(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """The function that builds the document once."""
    built: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not built:
            built.update(
                get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
            )
            _complete(built)
        return built

    return openapi


def _complete(built: dict[str, Any]) -> None:
    components = built.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update(SCHEMAS)
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    built["security"] = [{"bearer": []}, {"x-api-key": []}]
    for path, operations in built["paths"].items():
        shape = "AnthropicError" if path.startswith("/v1/messages") else "Error"
        open_to_all = path in ("/healthz", "/readyz")
        for operation in operations.values():
            responses = operation["responses"]
            responses.pop("422", None)  # what the framework would say; here it is a 400
            if open_to_all:
                operation["security"] = []
                continue
            for status, meaning in ERRORS.items():
                responses.setdefault(
                    status,
                    {
                        "description": meaning,
                        "content": {
                            "application/json": {"schema": {"$ref": f"#/components/schemas/{shape}"}}
                        },
                    },
                )
