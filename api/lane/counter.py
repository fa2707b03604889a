"""Counting what an engine did not report, by its own tokenizer and off the path."""

import asyncio
import logging
from typing import Any

from api.lane.usage import Usage
from engine import counting
from engine.registry import Replica

COUNT_SECONDS = 5.0
BYTES_PER_TOKEN = 4  # what a token is worth where no tokenizer can be asked (docs/billing.md)

log = logging.getLogger(__name__)


class Counter:
    """Counts prompts and delivered texts. When the engine cannot be asked it estimates, and flags that."""

    def __init__(self) -> None:
        self._mute: set[str] = set()  # replicas whose failure to count was said already
        self.ending = False  # the process ends: a count that is cut off is estimated rather than lost

    async def count(
        self,
        replica: Replica,
        endpoint: str,
        fields: dict[str, Any],
        text: str,
        events: int,
        prompt_bytes: int,
    ) -> tuple[Usage, list[str]]:
        """Usage of a call that sent `fields` and got `text` in `events` events, and flags for its row."""
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                counted = await counting.count(replica, endpoint, fields, text)
        except (counting.CannotCount, TimeoutError, OSError) as error:
            if replica.id not in self._mute:
                self._mute.add(replica.id)
                why = str(error) or "it did not answer in time"
                log.warning("replica %s cannot count, so its calls are estimated: %s", replica.name, why)
            return estimate(prompt_bytes, text, events)
        except asyncio.CancelledError:
            if not self.ending:
                raise
            return estimate(prompt_bytes, text, events)
        self._mute.discard(replica.id)
        return Usage(counted.prompt_tokens, 0, counted.completion_tokens, 0), []


def estimate(prompt_bytes: int, text: str, events: int) -> tuple[Usage, list[str]]:
    """A token for each event of a stream; of an answer in one piece, by its bytes."""
    completion = events or -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)
    return Usage(-(-prompt_bytes // BYTES_PER_TOKEN), 0, completion, 0), ["estimated"]
