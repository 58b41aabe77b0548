"""A FastAPI application over an embedded engine: /generate streams server-sent events, /cancel/{request_id} ends one.

pip install fastapi uvicorn
.venv/bin/python examples/fastapi_app.py models/demo 8000
curl -N -X POST http://127.0.0.1:8000/generate -H 'content-type: application/json' -d '{"prompt": "Once upon a time"}'
"""

import contextlib
import json
import sys
import uuid
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from headrace import AsyncEngineArgs, AsyncLLMEngine, RequestOutputKind, SamplingParams
from headrace.errors import HeadraceError


class GenerateBody(BaseModel):
    prompt: str
    max_tokens: int = 64
    temperature: float = 0.0
    request_id: str | None = None


def create_app(model: str) -> FastAPI:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=model))

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/generate")
    async def generate(body: GenerateBody) -> StreamingResponse:
        """One event for each piece of text, `[DONE]` at the end. The request's id is in the header x-request-id."""
        request_id = body.request_id or uuid.uuid4().hex
        try:
            params = SamplingParams(
                max_tokens=body.max_tokens, temperature=body.temperature, output_kind=RequestOutputKind.DELTA
            )
            stream = await engine.add_request(request_id, body.prompt, params)
        except HeadraceError as error:  # before the first byte: an ordinary answer with its status
            raise HTTPException(error.status_hint, detail=error.message) from error

        async def events() -> AsyncIterator[str]:
            try:
                async for output in stream:
                    (completion,) = output.outputs
                    yield event({"text": completion.text, "finish_reason": completion.finish_reason})
                yield "data: [DONE]\n\n"
            except HeadraceError as error:  # the status has been sent: an event of its own, and no [DONE]
                yield event({"error": error.message})
            finally:
                stream.close()  # a client that leaves ends the request

        headers = {"x-request-id": request_id, "cache-control": "no-cache"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)

    @app.delete("/cancel/{request_id}", status_code=204)
    async def cancel(request_id: str) -> Response:
        """Its stream ends with the finish reason `abort`. An unknown id is no error: it may just have ended."""
        await engine.abort(request_id)
        return Response(status_code=204)

    @app.get("/health")
    async def health() -> dict[str, int]:
        try:
            await engine.check_health()
        except HeadraceError as error:
            raise HTTPException(error.status_hint, detail=error.message) from error
        return {"unfinished": await engine.get_num_unfinished_requests()}

    return app


def event(data: dict[str, str | None]) -> str:
    return f"data: {json.dumps(data)}\n\n"


if __name__ == "__main__":
    model = sys.argv[1] if len(sys.argv) > 1 else "models/demo"
    uvicorn.run(create_app(model), port=int(sys.argv[2]) if len(sys.argv) > 2 else 8000)
