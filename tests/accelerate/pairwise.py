"""Few cases in place of a cross product."""

from itertools import combinations, product


def pairwise(*factors):
    """Cases in which every two values of different factors meet, chosen greedily.

    >>> len(pairwise("ab", "cd", "ef"))
    4
    """
    cases = [tuple(enumerate(case)) for case in product(*(range(len(f)) for f in factors))]
    missing = {pair for case in cases for pair in combinations(case, 2)}
    chosen = []
    while missing:
        best = max(cases, key=lambda case: len(missing.intersection(combinations(case, 2))))
        missing.difference_update(combinations(best, 2))
        chosen.append(tuple(factors[number][index] for number, index in best))
    return chosen
