"""Hugging Face's `Trainer`: does a learning rate of 3e-3 beat 1e-3 for a tiny GPT-2 on counting?

    python examples/any_code/hf_trainer.py [SEEDS]

The data are sequences of numbers that count up from a random start, modulo 17; nothing is downloaded.
"""

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import partwise


def train(seed, report, lr=1e-3, dropout=0.0):
    set_seed(seed)
    starts = torch.randint(0, 17, (320,), generator=torch.Generator().manual_seed(seed))
    rows = [{"input_ids": ids, "labels": ids} for ids in (starts[:, None] + torch.arange(16)) % 17]
    sizes = {"vocab_size": 17, "n_positions": 16, "n_embd": 32, "n_layer": 1, "n_head": 2}
    config = GPT2Config(**sizes, resid_pdrop=dropout, attn_pdrop=dropout)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder, seed=seed, learning_rate=lr, max_steps=60, per_device_train_batch_size=16, disable_tqdm=True,
            save_strategy="no", report_to=[], logging_steps=10, use_cpu=True,
        )  # fmt: skip
        trainer = Trainer(GPT2LMHeadModel(config), settings, train_dataset=rows[:256], eval_dataset=rows[256:])
        trainer.train()
    for line in trainer.state.log_history:
        if "loss" in line:
            report(line["step"], line["loss"])
    return trainer.evaluate()["eval_loss"]


if __name__ == "__main__":
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    arms = {"lr 1e-3": {}, "lr 3e-3": {"lr": 3e-3}, "dropout": {"dropout": 0.1}}
    print(partwise.compare_function(train, arms, metric="loss", unit="nats", margin=0.02, seeds=seeds, name="trainer"))
