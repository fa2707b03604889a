"""Run inside vLLM's environment: makes one checkpoint out of the GGUF file of SmolLM2-135M-Instruct.

    python make.py smollm2|tiny-llama GGUF FOLDER

smollm2     its weights in bf16 with its tokenizer and chat template (269 MB): sensible answers
tiny-llama  the same tokenizer on two layers of random weights (10 MB): nonsense, but hundreds of tokens/s
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, LlamaConfig, LlamaForCausalLM


def save_tokenizer(gguf: Path, folder: Path) -> None:
    AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(folder)


def smollm2(gguf: Path, folder: Path) -> None:
    save_tokenizer(gguf, folder)
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)


def tiny_llama(gguf: Path, folder: Path) -> None:
    save_tokenizer(gguf, folder)
    config = LlamaConfig(
        vocab_size=49152,  # of the tokenizer
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)  # every maker gets the same weights
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


RECIPES = {"smollm2": smollm2, "tiny-llama": tiny_llama}

if __name__ == "__main__":
    name, gguf_file, target = sys.argv[1:]
    RECIPES[name](Path(gguf_file), Path(target))
