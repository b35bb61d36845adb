"""Which smaller sizes take the place of fixed ones, as before: in order, distinct, with the same remainders."""

from __future__ import annotations

import itertools
from random import Random

import recorded
from sardonyx.verification.every_size import FixedSizes, Sizes

NUMBERS = (2, 3, 7, 8, 9, 12, 15, 16, 17, 24, 64, 100, 128, 384, 768, 1000, 3072)


def test_smaller_sizes_are_those_of_before() -> None:
    found: dict[str, object] = {}
    for seed in range(150):
        choose = Random(seed)
        sizes = frozenset(choose.sample(NUMBERS, choose.randint(1, 5)))
        named = frozenset(choose.sample((*sizes, 4, 10, 18), choose.randint(0, 3)))
        kept = frozenset({0, 1, *choose.sample((-16, 5, 8, 20, 32), choose.randint(0, 2))}) - sizes
        places = frozenset(choose.sample((-1, 6, 11, 50, 1 << 31), choose.randint(0, 2)))
        fixed = FixedSizes(sizes, named, kept | places, places, choose.random() < 0.5)
        refused = choose.choice((None, None, choose.choice(sorted(sizes)), *sorted(sizes)[:1]))

        def is_accepted(smaller: Sizes, refused: int | None = refused, few: bool = choose.random() < 0.2) -> bool:
            return refused not in smaller and not (few and len(smaller) > 1)

        chosen = fixed.choices(is_accepted)
        for smaller in chosen:
            pairs = sorted((size, new) for size, new in smaller.items() if isinstance(size, int))
            assert all(new < size and (size - new) % 8 == 0 for size, new in pairs)
            assert all(one < other for (_, one), (_, other) in itertools.pairwise(pairs))
            assert not {new for _, new in pairs} & (kept | named - sizes)
        told = [{str(size): new for size, new in smaller.items()} for smaller in chosen]
        found[f"{seed}: {sorted(sizes)}"] = [told, [fixed.names(smaller) for smaller in chosen]]
    recorded.check("smaller_sizes", found)
