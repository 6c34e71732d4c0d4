"""A program to record: GPT-2 small over 128 tokens, several forward passes, and the seconds that each took as JSON."""

import json
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import tileprof

PASSES = 5


def main():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(use_cache=False)).eval()
    tokens = torch.randint(0, model.config.vocab_size, (1, 128))
    seconds = []
    for _ in range(PASSES):
        begin = time.perf_counter()
        with torch.no_grad(), tileprof.capture():
            model(tokens)
        seconds.append(time.perf_counter() - begin)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
