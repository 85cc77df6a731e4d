"""`python -m zoo serve`."""

import dataclasses
import logging
import os
import sys
from pathlib import Path
from typing import Literal

from zoo.command_line import INTERRUPTED, TERMINATED, Terminated
from zoo.errors import InputError


def serve(
    path: str,
    /,
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str = "",
    max_body: int = 1024**2,
    max_length: int = 0,
    concurrency: int = 8,
    max_waiting: int = 64,
    timeout: float = 300.0,
    grace: float = 10.0,
    warm_up: bool = True,
    cache_dtype: Literal["float32", "bfloat16", "int8"] | None = None,
    int8: bool = False,
) -> None:
    """Serve a model over HTTP, as OpenAI's clients expect it; Ctrl-C ends.

    Decoders answer /v1/completions and, where their tokenizer has a chat template, /v1/chat/completions; encoders
    answer /v1/embeddings. Beside these: /v1/models, /health, /metrics. No key is asked for.

    Args:
        path: a checkpoint folder with a tokenizer, a GGUF file, a run folder, or a shipped model's name.
        host: address to listen at; 127.0.0.1 is reached from this machine alone, 0.0.0.0 from everywhere.
        port: 0 takes one that is free.
        name: what clients call the model; by default a folder's last part, or the shipped model's name.
        max_body: bytes of a request.
        max_length: tokens of a text, prompt and answer together, at most the model's positions; 0 for these.
        concurrency: texts at work at once; each holds keys and values of its length.
        max_waiting: texts that wait for their turn; more are told to come back (429).
        timeout: seconds a request may take, waiting included (504).
        grace: seconds that requests at work have when the server is stopped.
        warm_up: compile what a short request of default settings needs before any is taken; other kinds of requests
            wait for their programs when the first of them comes.
        cache_dtype: of cached keys and values; int8 takes a third of float32's memory or less.
        int8: weights in int8 but for the columns that matter most: a quarter of the memory (zoo.quantize).

    Examples:
        python -m zoo serve oneblock/gpt-tiny
        python -m zoo serve runs/demo/gpt --port 8080 --concurrency 16
        curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "the price of", "max_tokens": 20}'
    """
    from zoo.serve.limits import Limits

    limits = Limits(max_body, max_length, concurrency, max_waiting, timeout, grace)
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(f'serving needs {error.name}; run: pip install "oneblock[serve]"') from None
    import zoo
    from zoo.calibration import sample_rows
    from zoo.serve.app import Service
    from zoo.serve.served import Served
    from zoo.serve.server import Server, bind

    taken = bind(host, port)
    try:
        model, params = zoo.load(path)
        tokenizer = zoo.load_tokenizer(path)
        check_served(model, tokenizer)
        served = Served(model, params, tokenizer, name or named(path), limits, cache_dtype)
        if int8:
            model, params = zoo.quantize(model, params, calibration=sample_rows(tokenizer))
            served = dataclasses.replace(served, model=model, params=params)
        service = Service(served)
        server = Server(service)
        if warm_up:
            print("compiling for the first request (--no-warm-up leaves it to that one)", file=sys.stderr, flush=True)
            service.warm()
    except BaseException:
        taken.close()
        raise
    address, at = taken.getsockname()[:2]
    address = f"[{address}]" if ":" in address else address
    print(f"{served.name} at http://{address}:{at}/v1 ({what(served)}); Ctrl-C ends", flush=True)
    if address not in ("127.0.0.1", "[::1]"):
        print("whoever reaches this address may ask: no key is asked for", file=sys.stderr, flush=True)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of every client that goes away
    try:
        server.run([taken])
    except KeyboardInterrupt as error:
        if not service.engine.ended:
            end_at_once(error)
        raise


def end_at_once(error: KeyboardInterrupt) -> None:
    """Ends the process beside a program that is being compiled: nothing breaks it off, and Python waits for no such."""
    stopped = isinstance(error, Terminated)
    print("terminated" if stopped else "interrupted", file=sys.stderr, flush=True)
    os._exit(TERMINATED if stopped else INTERRUPTED)


def check_served(model, tokenizer) -> None:
    """Raises InputError for a model that neither continues texts nor reads them whole, or another's tokenizer."""
    from zoo.generation.text_batch import require_decoder
    from zoo.text_rows import check_fit

    check_fit(model.config, tokenizer)
    if model.config.visibility != "full":
        require_decoder(model.config)


def named(path: str) -> str:
    """What clients call the model of a path: a shipped model's name, else the path's last part."""
    return path if not Path(path).exists() else Path(path).resolve().name


def what(served) -> str:
    """The routes of a model, and the memory that its texts may take, in words."""
    if served.encodes:
        return "embeddings"
    config, texts = served.model.config, served.limits.concurrency
    size = {"float32": 4, "int8": 1}.get(served.cache_dtype or config.dtype, 2)
    a_token = 2 * config.num_layers * config.num_kv_heads * (config.head_dim * size + (4 if size == 1 else 0))
    most = 1.5 * a_token * served.longest * texts  # what grows or shrinks is copied: both are there for a moment
    chat = "completions and chat" if served.tokenizer.chat_template else "completions; no chat template"
    return f"{chat}; keys and values of {texts} texts of {served.longest} tokens take up to {most / 1e9:.2g} GB"
