"""Builds ``wordnet_hypernyms.npz``, the noun hierarchy, from WordNet.

Run as ``python tools/build_hypernyms.py PATH_TO_data.noun``; Debian's package
``wordnet-base`` holds that file of WordNet 3.0. ImageNet's web service for the hierarchy is gone.
"""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ASSETS = Path(__file__).parents[1] / "fedaux_pl" / "data" / "assets"
LICENSE_PREFIX = "  "  # lines of the license start with it
HYPERNYMS = ("@", "@i")  # pointer symbols: "is a kind of" and "is an instance of"
PREFACE = """\
wordnet_hypernyms.npz, beside this file, was derived from data.noun of WordNet 3.0 by
build_hypernyms.py: of every noun synset it keeps the offset, the first lemma, and the offsets of
its hypernyms and instance hypernyms; everything else was left out. WordNet's license follows.

"""


@dataclass
class Nouns:
    """The parts of ``data.noun`` in use; a synset is identified by its offset, as in ImageNet.

    Args:
        lemmas: The first lemma of each synset, by offset.
        edges: Pairs (offset, offset of a hypernym).
        license: The lines of the license at the start of the file.
    """

    lemmas: dict[int, str] = field(default_factory=dict)
    edges: list[tuple[int, int]] = field(default_factory=list)
    license: list[str] = field(default_factory=list)


def parse(lines: Iterable[str]) -> Nouns:
    """Parses the lines of ``data.noun``, whose format is in the manual page wndb(5WN)."""
    nouns = Nouns()
    for number, line in enumerate(lines, start=1):
        if line.startswith(LICENSE_PREFIX):
            nouns.license.append(line.strip().partition(" ")[2])
            continue
        try:
            _parse_synset(line, nouns)
        except (IndexError, ValueError) as error:
            raise ValueError(f"line {number} is not a noun synset: {line[:60]!r}") from error
    return nouns


def _parse_synset(line: str, nouns: Nouns) -> None:
    fields = line.partition("|")[0].split()
    if fields[2] != "n":
        raise ValueError(f"synset type {fields[2]!r}")
    offset, words = int(fields[0]), int(fields[3], 16)  # the one hexadecimal field
    nouns.lemmas[offset] = fields[4]
    first = 5 + 2 * words  # each word is followed by its sense number
    pointers = [fields[first + 4 * i : first + 4 * i + 4] for i in range(int(fields[first - 1]))]
    for symbol, target, kind, _ in pointers:
        if symbol in HYPERNYMS and kind == "n":
            nouns.edges.append((offset, int(target)))


def build(source: Path, folder: Path) -> Path:
    """Writes the table and the license of ``data.noun`` to a folder; returns the table's path."""
    with source.open(encoding="ascii") as file:
        nouns = parse(file)
    synsets = sorted(nouns.lemmas)
    edges = np.array(sorted(nouns.edges), dtype=np.int32).reshape(-1, 2)
    table = folder / "wordnet_hypernyms.npz"
    # one string: an array of strings would pad each to the longest
    lemmas = "\n".join(nouns.lemmas[offset] for offset in synsets)
    np.savez_compressed(
        table,
        synset=np.array(synsets, dtype=np.int32),
        child=edges[:, 0],
        parent=edges[:, 1],
        lemmas=np.frombuffer(lemmas.encode("ascii"), dtype=np.uint8),
    )
    license_text = PREFACE + "\n".join(nouns.license) + "\n"
    (folder / "WORDNET_LICENSE.txt").write_text(license_text, encoding="ascii")
    return table


def main() -> None:
    """Builds from the file on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, metavar="PATH_TO_data.noun")
    parser.add_argument("--folder", type=Path, default=ASSETS, help="where to write")
    arguments = parser.parse_args()
    table = build(arguments.source, arguments.folder)
    print(f"wrote {table} ({table.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
