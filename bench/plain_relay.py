"""The plain way to write a relay in Python: FastAPI on uvicorn, aiohttp as the client, no features at all.

python plain_relay.py --port 9200 ENGINE_URL ...
"""

import argparse
import itertools
from collections.abc import AsyncIterator

import aiohttp  # in .venvs/fastapi-aiohttp
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

app = FastAPI()


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/v1/chat/completions")
async def relay(request: Request) -> Response:
    state = request.app.state
    if not hasattr(state, "session"):
        state.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=None)
    answer = await state.session.post(
        f"{next(state.engines)}/v1/chat/completions",
        data=await request.body(),
        headers={"content-type": "application/json"},
    )
    if not answer.content_type.startswith("text/event-stream"):
        return Response(await answer.read(), answer.status, media_type=answer.content_type)

    async def events() -> AsyncIterator[bytes]:
        async for data, _ in answer.content.iter_chunks():
            yield data

    return StreamingResponse(events(), answer.status, media_type="text/event-stream")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9200)
    parser.add_argument("engines", nargs="+")
    options = parser.parse_args()
    app.state.engines = itertools.cycle(options.engines)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="error", access_log=False)


if __name__ == "__main__":
    main()
