"""What an engine is and can do, found by asking it; nothing asked makes it generate, except `real_token`."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import EngineHasNoSuchModel, EngineUnreachable
from engine.inquiry import Reply, ask
from engine.registry import ENDPOINTS, Kind, split_engine_url

LIGHT_OWNER = "llamacpp"  # `owned_by` of llama.cpp's models
VLLM_OWNER = "vllm"
ABSENT = frozenset({404, 405, 501})  # how servers say that they have no such endpoint
FIRST_TOKEN_SECONDS = 60.0
TRY_AGAIN_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What was found at an address; None where the engine does not say.

    url: its address without '/v1'; served: the names of all its models; context_length: tokens of prompt and
    answer together; slots: calls that it answers at the same time; has_tokenize: it counts tokens for us;
    created_drifts: `created` changes within a stream; version: of its software.
    """

    url: str
    host: str
    port: int
    base_path: str
    kind: Kind
    engine_model: str
    served: tuple[str, ...]
    endpoints: frozenset[str]
    context_length: int | None
    slots: int | None
    has_tokenize: bool
    created_drifts: bool
    version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Abilities:
    """The part of EngineFacts that is asked differently of each kind."""

    kind: Kind
    endpoints: frozenset[str]
    context_length: int | None
    slots: int | None = None
    has_tokenize: bool = False
    created_drifts: bool = False
    version: str | None = None


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A token that was really generated: the tokens it used, charged to nobody, and how long it took."""

    prompt_tokens: int
    completion_tokens: int
    seconds: float


async def probe(url: str, model: str | None = None, *, within: float = 5.0) -> EngineFacts:
    """Ask the engine at `url` (with or without '/v1') what it is. `within`: seconds for each question.

    model: the name that it must serve; None takes the only one that it serves. Raises InvalidSetting (not the
    address of an engine), EngineUnreachable, EngineHasNoSuchModel.
    """
    host, port, base_path = split_engine_url(url)
    place = f"{host}:{port}"
    listing = await ask(url, "GET", "/v1/models", within=within)
    entries = _entries(listing, place)
    served = tuple(str(entry["id"]) for entry in entries)
    engine_model = _choose(model, served, place)
    entry = next(entry for entry in entries if entry["id"] == engine_model)
    shown_host = f"[{host}]" if ":" in host else host
    found = await _by_kind(url, entry, within)
    return EngineFacts(
        url=f"http://{shown_host}:{port}{base_path}",
        host=host,
        port=port,
        base_path=base_path,
        engine_model=engine_model,
        served=served,
        kind=found.kind,
        endpoints=found.endpoints,
        context_length=found.context_length,
        slots=found.slots,
        has_tokenize=found.has_tokenize,
        created_drifts=found.created_drifts,
        version=found.version,
    )


async def real_token(
    url: str, engine_model: str, *, endpoint: str = "chat/completions", within: float = FIRST_TOKEN_SECONDS
) -> FirstToken:
    """Have the engine generate one token: the only proof that it can. Raises EngineUnreachable."""
    question: dict[str, Any] = {"model": engine_model, "max_tokens": 1}
    match endpoint:
        case "embeddings":
            question = {"model": engine_model, "input": "Hello"}
        case "completions":
            question["prompt"] = "Hello"
        case "responses":
            question = {"model": engine_model, "input": "Hello", "max_output_tokens": 1}
        case _:
            question["messages"] = [{"role": "user", "content": "Hello"}]
    began = time.monotonic()
    reply = await ask(url, "POST", f"/v1/{endpoint}", question, within=within)
    answer = reply.json
    if reply.status != 200 or not isinstance(answer, dict):
        host, port, _ = split_engine_url(url)
        raise EngineUnreachable(
            f"The engine at {host}:{port} answers {reply.status} instead of a token of '{engine_model}'."
        )
    usage = answer.get("usage") or {}
    return FirstToken(
        prompt_tokens=_number(usage, "prompt_tokens", "input_tokens"),
        completion_tokens=_number(usage, "completion_tokens", "output_tokens"),
        seconds=time.monotonic() - began,
    )


async def wait_ready(
    url: str, engine_model: str, *, within: float, endpoint: str = "chat/completions"
) -> FirstToken:
    """Wait until the engine gives a real token. Raises EngineUnreachable after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        left = deadline - time.monotonic()
        try:
            return await real_token(url, engine_model, endpoint=endpoint, within=max(left, TRY_AGAIN_SECONDS))
        except EngineUnreachable:
            if time.monotonic() + TRY_AGAIN_SECONDS >= deadline:
                raise
        await asyncio.sleep(TRY_AGAIN_SECONDS)


def _entries(listing: Reply, place: str) -> list[dict[str, Any]]:
    """The models of a listing in OpenAI's shape."""
    if listing.status in {401, 403}:
        raise EngineUnreachable(
            f"The engine at {place} asks for a key, and Tollgate sends engines none: let it in without."
        )
    found = listing.json.get("data") if isinstance(listing.json, dict) else None
    if listing.status != 200 or not isinstance(found, list):
        raise EngineUnreachable(
            f"What answers at {place} is no engine: /v1/models gave {listing.status} and no list of models."
        )
    return [entry for entry in found if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _choose(model: str | None, served: Sequence[str], place: str) -> str:
    listed = ", ".join(f"'{name}'" for name in served) or "no model"
    if model is None:
        if len(served) == 1:
            return served[0]
        raise EngineHasNoSuchModel(
            f"The engine at {place} serves {listed}: say which one with --model.", tuple(served)
        )
    if model not in served:
        raise EngineHasNoSuchModel(
            f"The engine at {place} does not serve '{model}' but {listed}: correct --model or the address.",
            tuple(served),
        )
    return model


async def _by_kind(url: str, entry: dict[str, Any], within: float) -> _Abilities:
    owner = entry.get("owned_by")
    if owner == LIGHT_OWNER:
        return await _light_facts(url, within)
    if owner == VLLM_OWNER:
        return await _vllm_facts(url, entry, within)
    return _Abilities(
        kind="openai",
        endpoints=await _endpoints_by_empty_body(url, ENDPOINTS, within),
        context_length=_positive(entry.get("max_model_len") or entry.get("context_length")),
    )


async def _light_facts(url: str, within: float) -> _Abilities:
    told = (await ask(url, "GET", "/props", within=within)).json
    properties = told if isinstance(told, dict) else {}
    settings = properties.get("default_generation_settings")
    always = frozenset(ENDPOINTS) - {"embeddings"}
    return _Abilities(
        kind="light",
        endpoints=always | await _endpoints_by_empty_body(url, ("embeddings",), within),
        context_length=_positive(settings.get("n_ctx") if isinstance(settings, dict) else None),
        slots=_positive(properties.get("total_slots")),
        has_tokenize=True,
        created_drifts=True,
        version=str(properties["build_info"]) if properties.get("build_info") else None,
    )


async def _vllm_facts(url: str, entry: dict[str, Any], within: float) -> _Abilities:
    told = (await ask(url, "GET", "/version", within=within)).json
    version = told.get("version") if isinstance(told, dict) else None
    # A route that only takes POST says 405 to GET without a look at anything. /openapi.json would say it as
    # well, but writing it for the first time stops a replica for a second.
    present = [
        endpoint
        for endpoint in ENDPOINTS
        if (await ask(url, "GET", f"/v1/{endpoint}", within=within)).status == 405
    ]
    return _Abilities(
        kind="vllm",
        endpoints=frozenset(present) or await _endpoints_by_empty_body(url, ENDPOINTS, within),
        context_length=_positive(entry.get("max_model_len")),
        has_tokenize=(await ask(url, "GET", "/tokenize", within=within)).status == 405,
        version=str(version) if version else None,
    )


async def _endpoints_by_empty_body(url: str, candidates: Sequence[str], within: float) -> frozenset[str]:
    """Those that refuse an empty body as bad rather than as unknown."""
    present = []
    for endpoint in candidates:
        reply = await ask(url, "POST", f"/v1/{endpoint}", {}, within=within)
        if reply.status not in ABSENT:
            present.append(endpoint)
    return frozenset(present)


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _number(usage: Any, *names: str) -> int:
    found = [usage[name] for name in names if isinstance(usage, dict) and isinstance(usage.get(name), int)]
    return found[0] if found else 0
