"""Small encoders and texts."""

import shutil
from pathlib import Path

import torch

import fedaux_pl.data.assets
from fedaux_pl.models import create_model

VOCABULARY = Path(fedaux_pl.data.assets.__file__).parent / "glosses_tokenizer"
CONFIG = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "attention_probs_dropout_prob": 0.0,
}


def encoder(classes=3, seed=0, **options):
    """A small BERT with random weights."""
    torch.manual_seed(seed)
    return create_model("encoder", classes, **({"config": CONFIG, "mask_id": 4} | options))


def ids(*lengths, width=20, vocabulary=60, pad=0, seed=0):
    """Token ids of texts of these lengths, with the tokens [CLS] and [SEP]."""
    generator = torch.Generator().manual_seed(seed)
    result = torch.full((len(lengths), width), pad, dtype=torch.int32)
    for row, length in zip(result, lengths, strict=True):
        row[:length] = torch.randint(5, vocabulary, (length,), generator=generator)
        row[0], row[length - 1] = 2, 3
    return result


def save(folder, model):
    """Saves an encoder and its tokenizer in the format of the transformers library."""
    model.encoder.save_pretrained(folder)
    for file in VOCABULARY.iterdir():
        shutil.copy(file, folder)
    return folder
