"""What `tollgate up` was asked for, and the ports it uses unless told otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal

EngineChoice = Literal["light", "vllm"]

# The API is for callers; all else listens on loopback only, in one range.
API_PORT = 8080
POSTGRES_PORT = 17801
BROKER_PORT = 17802
LIMITS_PORT = 17803
CACHE_PORT = 17804
ENGINE_PORT = 17810  # and the following, one for each replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Of a model, in USD for a million tokens."""

    prompt: Decimal
    completion: Decimal


EXAMPLE_PRICE = Price(prompt=Decimal("0.10"), completion=Decimal("0.40"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One start. given: URLs of servers that run already, by variable name (DATABASE_URL, ...).

    model_file: weights for an engine that is started, a GGUF file (light) or a folder (vllm); None: SmolLM2.
    price: None keeps what the price book has, and takes EXAMPLE_PRICE where it has nothing.
    grace: seconds that the API's open streams have to end when it is stopped.
    api_words: further options of each API process, as `python -m api --help` lists them.
    """

    host: str = "127.0.0.1"
    port: int = API_PORT
    workers: int = 1
    postgres_port: int = POSTGRES_PORT
    broker_port: int = BROKER_PORT
    limits_port: int = LIMITS_PORT
    cache_port: int = CACHE_PORT
    engine_port: int = ENGINE_PORT
    engine: EngineChoice = "light"
    replicas: int = 1
    slots: int | None = None
    engine_urls: tuple[str, ...] = ()
    model: str | None = None
    model_file: Path | None = None
    price: Price | None = None
    grace: float = 10.0
    api_words: tuple[str, ...] = ()
    given: Mapping[str, str]
