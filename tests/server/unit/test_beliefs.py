"""The standing of beliefs, against a reference model, over random graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from threefold_server.rules.beliefs import supported

Graph = Mapping[int, Sequence[frozenset[int]]]


def is_supported(graph: Graph, falsified: set[int], belief: int) -> bool:
    """Return the standing by its definition, for a graph without circles."""

    def holds(member: int) -> bool:
        return member in graph and member not in falsified and is_supported(graph, falsified, member)

    return not graph[belief] or any(all(map(holds, members)) for members in graph[belief])


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw beliefs that rest on earlier ones only, some of which do not exist."""
    size = draw(st.integers(1, 12))
    graph: dict[int, list[frozenset[int]]] = {}
    for belief in range(size):
        earlier = st.integers(-2, belief - 1)  # -2 and -1 were forgotten
        graph[belief] = draw(st.lists(st.frozensets(earlier, min_size=1, max_size=3), max_size=3))
    return graph


@given(graphs(), st.sets(st.integers(0, 11)))
def test_standing_follows_its_definition(graph: Graph, falsified: set[int]) -> None:
    expected = {belief for belief in graph if is_supported(graph, falsified, belief)}
    assert supported(graph, falsified) == expected


@given(graphs(), st.sets(st.integers(0, 11)), st.integers(0, 11))
def test_part_of_a_graph_gives_the_standing_of_the_whole(graph: Graph, falsified: set[int], start: int) -> None:
    """Earlier beliefs do not depend on later ones, so that these can be computed from those that hold."""
    whole = supported(graph, falsified)
    holding = {belief for belief in whole if belief < start and belief not in falsified}
    later = {belief: sets for belief, sets in graph.items() if belief >= start}
    assert supported(later, falsified, holding) == {belief for belief in whole if belief >= start}


def test_restored_root_restores_a_chain_and_a_diamond() -> None:
    graph: Graph = {1: [], 2: [frozenset({1})], 3: [frozenset({1})], 4: [frozenset({2, 3})], 5: [frozenset({4})]}
    assert supported(graph, {1}) == {1}
    assert supported(graph, set()) == {1, 2, 3, 4, 5}


def test_one_of_several_sets_is_enough() -> None:
    graph: Graph = {1: [], 2: [], 3: [frozenset({1}), frozenset({2})]}
    assert 3 in supported(graph, {1})
    assert 3 not in supported(graph, {1, 2})


def test_circle_supports_nothing() -> None:
    assert supported({1: [frozenset({2})], 2: [frozenset({1})]}, set()) == set()


def test_long_chain_needs_no_recursion() -> None:
    chain = {number: [frozenset({number - 1})] if number else [] for number in range(20_000)}
    assert supported(chain, {0}) == {0}
    assert len(supported(chain, set())) == 20_000
