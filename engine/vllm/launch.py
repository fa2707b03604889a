"""How a vLLM replica is started, and how one knows that it can answer."""

from pathlib import Path

from engine.vllm.environment import Environment, environment

CONTEXT = 2048  # tokens of prompt and answer together
KV_CACHE_GIB = 1  # on a CPU; 46,592 tokens of SmolLM2
START_SECONDS = 120.0  # on two busy cores; 22 s on quiet ones


def command(
    model_path: Path | str,
    name: str,
    port: int,
    slots: int,
    *,
    host: str = "127.0.0.1",
    context: int = CONTEXT,
    where: Environment | None = None,
) -> tuple[list[str], dict[str, str]]:
    """The words that start `vllm serve`, and the environment variables to add to ours for it.

    `slots` calls are batched at once, `context` is in tokens per call. On a CPU it starts in about 22 s and
    takes 2.5 to 2.9 GiB, nearly all of it imports.
    """
    where = where or environment()
    words = [str(where.vllm), "serve", str(model_path)]
    words += ["--served-model-name", name, "--host", host, "--port", str(port)]
    words += ["--max-model-len", str(context), "--max-num-seqs", str(slots)]
    words += ["--enable-prompt-tokens-details"]  # else usage leaves out the cached tokens
    words += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    words += ["--disable-uvicorn-access-log"]
    variables = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if where.device == "cpu":
        words += ["--dtype", "bfloat16"]
        words += ["--enforce-eager"]  # compiling takes a minute or two at every start
        words += ["--distributed-executor-backend", "uni"]
        variables |= {
            "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
            # One process and one thread: two replicas with two threads each collapse on two cores.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
        }
    return words, variables
