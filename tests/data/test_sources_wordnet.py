"""The table of hypernyms: how it is built, and what it says."""

from pathlib import Path

import numpy as np
import pytest

from fedaux_pl.data.sources.imagenet_subset import SUBSETS, _array, hyponyms, lemma
from tools.build_hypernyms import build, parse

ASSETS = Path(__file__).parents[2] / "fedaux_pl" / "data" / "assets"

# lines like those of the real file, with fewer pointers and shorter glosses: the dog has two
# hypernyms, and the last one, which is invented, is an instance with twelve words (hexadecimal 0c)
DATA_NOUN = """\
  1 This software and database is being provided to you, the LICENSEE, by  
  2 Princeton University under the following license.  By obtaining, using  
  5   
  14 WordNet 3.0 Copyright 2006 by Princeton University.  All rights reserved.  
00001740 03 n 01 entity 0 003 ~ 00001930 n 0000 ~ 00002137 n 0000 ~ 04424418 n 0000 | that which is  
00015388 05 n 06 animal 0 animate_being 0 beast 0 brute 1 creature 0 fauna 1 002 @ 00001740 n 0000 + 01617192 a 0604 | a living organism  
01317541 05 n 02 domestic_animal 0 domesticated_animal 0 001 @ 00015388 n 0000 | any of various  
02083346 05 n 02 canine 0 canid 0 003 @ 00015388 n 0000 #m 02083863 n 0000 + 02688440 a 0101 | any  
02084071 05 n 03 dog 0 domestic_dog 0 Canis_familiaris 0 003 @ 02083346 n 0000 @ 01317541 n 0000 #m 02083863 n 0000 | a member of the genus Canis | with a bar  
02085620 05 n 01 Chihuahua 0 001 @ 02084071 n 0000 | an old breed of tiny short-haired dog  
09990415 05 n 0c a 0 b 0 c 0 d 0 e 0 f 0 g 0 h 0 i 0 j 0 k 0 l 0 001 @i 02084071 n 0000 | an instance  
"""  # noqa: E501, W291


def test_parses_the_format_of_wordnet():
    nouns = parse(DATA_NOUN.splitlines(keepends=True))
    assert nouns.lemmas[2084071] == "dog"
    assert len(nouns.lemmas) == 7
    assert nouns.edges == [
        (15388, 1740),
        (1317541, 15388),
        (2083346, 15388),
        (2084071, 2083346),
        (2084071, 1317541),
        (2085620, 2084071),
        (9990415, 2084071),
    ]
    assert nouns.license[0].startswith("This software and database is being provided")
    assert nouns.license[2] == ""


def test_error_names_the_wrong_line():
    with pytest.raises(ValueError, match="line 2 is not a noun synset: '00001740 03 v"):
        parse(["  1 license\n", "00001740 03 v 01 breathe 0 000 | a verb\n"])


def test_writes_the_table_and_the_license(tmp_path):
    source = tmp_path / "data.noun"
    source.write_text(DATA_NOUN)
    with np.load(build(source, tmp_path)) as table:
        assert table["synset"].dtype == table["child"].dtype == table["parent"].dtype == np.int32
        assert table["synset"].tolist()[:2] == [1740, 15388]
        assert len(table["child"]) == len(table["parent"]) == 7
        assert table["lemmas"].tobytes().startswith(b"entity\nanimal\ndomestic_animal\n")
    text = (tmp_path / "WORDNET_LICENSE.txt").read_text()
    assert "\nWordNet 3.0 Copyright 2006 by Princeton University." in text


def test_license_is_shipped():
    text = (ASSETS / "WORDNET_LICENSE.txt").read_text()
    assert "Permission to use, copy, modify and distribute this software" in text
    assert text.rstrip().endswith("LICENSEE agrees to preserve same.")


@pytest.mark.skipif(
    not Path("/usr/share/wordnet/data.noun").exists(), reason="WordNet is not installed"
)
def test_shipped_table_is_what_wordnet_gives(tmp_path):
    table = build(Path("/usr/share/wordnet/data.noun"), tmp_path)
    assert table.read_bytes() == (ASSETS / "wordnet_hypernyms.npz").read_bytes()


def test_table_is_complete():
    # the numbers of WordNet 3.0, from its manual page wnstats(7WN): 82,115 noun synsets
    assert len(_array("synset")) == 82_115
    known = _array("synset")
    assert np.isin(_array("child"), known).all()
    assert np.isin(_array("parent"), known).all()
    # every noun is a kind, or an instance, of some entity
    assert len(hyponyms("n00001740")) == 82_115


def test_hyponyms():
    dogs = hyponyms("n02084071")
    assert {"n02084071", "n02085620"} <= dogs  # dog, Chihuahua
    assert "n01443537" not in dogs  # goldfish
    assert "n02123045" not in dogs  # tabby
    assert "n01443537" in hyponyms(SUBSETS["Animals"])
    assert "n01443537" not in hyponyms(SUBSETS["Birds"])
    assert dogs < hyponyms(SUBSETS["Mammals"]) < hyponyms(SUBSETS["Animals"])
    assert hyponyms("n02085620") == {"n02085620"}
    assert "n11375418" in hyponyms("n10467395")  # instances: George Washington, a president


def test_lemma():
    words = ["animal", "bird", "dog", "device", "invertebrate", "mammal", "structure"]
    assert [lemma(wnid) for wnid in SUBSETS.values()] == words
    assert lemma("n01629819") == "European fire salamander"


@pytest.mark.parametrize("wnid", ["n02084072", "n99999999", "dog", "n2084071", "v02084071", ""])
def test_unknown_ids(wnid):
    with pytest.raises(ValueError, match=f"got '{wnid}'; expected to be the id of a noun"):
        hyponyms(wnid)
