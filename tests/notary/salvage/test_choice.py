"""The choice of a salvage: an item for each position that the log lacks, and each row of the page's table of refusals."""

from collections.abc import Callable, Sequence

import pytest

from notary.salvage import past
from notary.salvage.choice import Choice, choose
from notary.salvage.forest import difference, nodes_of
from notary.salvage.statements import ChoiceRefused, Receipt
from notary.tree import Tree, TreeView, leaf_hash, view_at
from ordering.salvage import Decided, Hashed, Item, Lost, lost_leaf
from tests.notary.salvage.witnesses import MemoryIndex, decided, id_of, receipt, state_of, tag_of

ALL = [decided(position, position, position) for position in range(10)]
"""A history of ten: each position's transaction consumes the state of that number."""


def chosen(kept: Sequence[Item], indexes: Sequence[MemoryIndex] = (), receipts: Sequence[Receipt] = ()) -> Choice:
    return choose(MemoryIndex("the log", kept), indexes, receipts)


def refused(kept: Sequence[Item], indexes: Sequence[MemoryIndex] = (), receipts: Sequence[Receipt] = ()) -> ChoiceRefused:
    with pytest.raises(ChoiceRefused) as raised:
        chosen(kept, indexes, receipts)
    return raised.value


def replaced(position: int, item: Item) -> list[Item]:
    return [*ALL[:position], item, *ALL[position + 1 :]]


# ---- items


def test_an_index_gives_back_what_the_log_lacks() -> None:
    """A complete index gives each decision back, and the root is its own: no old checkpoint is forked."""
    choice = chosen(ALL[:6], [MemoryIndex("a", ALL), MemoryIndex("b", ALL[:8])])
    assert (choice.first, list(choice.items), choice.end) == (6, ALL[6:], 10)
    assert choice.root == MemoryIndex("", ALL).tree.root
    assert (choice.same_roots_to, choice.forked) == (10, ())
    # One of them may have only the hash there, from a salvage that the log lost.
    hashed = MemoryIndex("a", replaced(7, Hashed(leaf_hash(ALL[7].leaf))))
    for indexes in ([hashed, MemoryIndex("b", ALL[:8])], [MemoryIndex("b", ALL), hashed]):
        assert list(chosen(ALL[:6], indexes).items) == ALL[6:]


def test_nothing_is_lost() -> None:
    """With sources that have no more than the log, the choice is empty and its root is the log's."""
    choice = chosen(ALL, [MemoryIndex("a", ALL[:4])], [receipt("r", ALL, 3)])
    assert (choice.items, choice.end, choice.root) == ((), 10, MemoryIndex("", ALL).tree.root)


def test_an_empty_log_and_no_source() -> None:
    """A log without a decision and no source give nothing."""
    assert chosen([]).items == ()


def test_a_proof_gives_a_hash_and_the_rest_is_lost() -> None:
    """A receipt gives its decision and its neighbour's hash; other positions up to its checkpoint are lost."""
    choice = chosen(ALL[:6], receipts=[receipt("r", ALL, 8)])
    assert list(choice.items) == [Lost(), Lost(), ALL[8], Hashed(leaf_hash(ALL[9].leaf))]
    assert choice.positions(Lost) == [(6, 7)]
    assert (choice.count(Decided), choice.count(Hashed), choice.count(Lost)) == (1, 1, 2)
    assert chosen(ALL[:8], receipts=[receipt("r", ALL, 9)]).items == (Hashed(leaf_hash(ALL[8].leaf)), ALL[9])


def test_checkpoints_beyond_a_lost_position_are_listed() -> None:
    """Checkpoints up to the first lost position keep their roots; those of larger sizes are listed with their source."""
    receipts = [receipt("early", ALL, 2, size=6), receipt("late", ALL, 8), receipt("later", ALL, 9)]
    choice = chosen(ALL[:6], receipts=receipts)
    assert choice.same_roots_to == 6
    assert [(each.size, each.name) for each in choice.forked] == [(10, "late")]


def test_the_salvage_goes_up_to_the_largest_checkpoint() -> None:
    """A position below a checkpoint's size is never given to another transaction, also where nobody knows the last leaves."""
    choice = chosen(ALL[:4], receipts=[receipt("r", ALL, 1)])
    assert choice.end == 10
    assert choice.positions(Lost) == [(4, 9)]


def test_a_receipt_after_an_earlier_salvage_shows_a_lost_leaf() -> None:
    """If the neighbour in a proof is the lost leaf, the position is lost, and the receipt's checkpoint keeps its root."""
    after = replaced(6, Lost())
    for indexes in ([MemoryIndex("a", after[:7])], []):
        choice = chosen(ALL[:6], indexes, [receipt("r", after, 7)])
        assert list(choice.items) == [Lost(), ALL[7], Lost(), Lost()]
    # A receipt from before that salvage is no contradiction.
    assert chosen(ALL[:6], receipts=[receipt("old", ALL, 0), receipt("r", after, 7)]).items == choice.items


def test_a_receipt_before_an_earlier_salvage_is_accepted() -> None:
    """A receipt whose checkpoint was signed before a position was lost has other nodes above that position, and is no contradiction."""
    after = replaced(4, Lost())
    choice = chosen(after, receipts=[receipt("old", ALL, 7)])
    assert choice.items == ()
    assert [(each.size, each.name) for each in choice.forked] == [(10, "old")]
    # Its direct neighbour may be the lost position.
    assert chosen(after, receipts=[receipt("old", ALL, 5)]).items == ()
    # The log may have lost that salvage too; an index shows it.
    assert list(chosen(ALL[:4], [MemoryIndex("a", after)], [receipt("old", ALL, 7)]).items) == after[4:]
    # Below that position it is compared.
    forked = receipt("r", replaced(2, decided(2, "another", 22)), 0)
    assert (refused(after, receipts=[forked]).position, refused(after, receipts=[forked]).names) == (2, ["the log", "r"])


def test_a_receipt_from_after_an_earlier_salvage_is_compared_above_its_lost_positions() -> None:
    """A key that was in force after a position was declared lost signs only trees with its lost leaf; another node there is a fork."""
    after = replaced(4, Lost())
    forked = [*after[:6], decided(6, "another", 66), *after[7:]]
    log = MemoryIndex("the log", after, keys=[b"first", b"salvage", b"later"], salvages=[(4, 5, 1)])
    for key, is_compared in ((b"first", False), (b"unknown", False), (b"salvage", True), (b"later", True)):
        one = receipt("r", forked, 0, key=key)
        assert choose(log, [], [receipt("good", after, 0, key=key)]).forked == ()
        if not is_compared:
            assert [each.name for each in choose(log, [], [one]).forked] == ["r"]
            continue
        with pytest.raises(ChoiceRefused) as raised:
            choose(log, [], [one])
        assert (raised.value.position, raised.value.names) == (4, ["the log", "r"])


def test_a_request_completes_a_receipt() -> None:
    """If there are two receipts of one decision, the one with its request gives the consumed states, in either order."""
    one, other = receipt("bare", ALL, 9, bare=True), receipt("full", ALL, 9)
    for receipts in ([one, other], [other, one]):
        assert chosen(ALL[:9], receipts=receipts).items == (ALL[9],)
    assert chosen(ALL[:9], [MemoryIndex("a", ALL)], [one]).items == (ALL[9],)


def test_a_decision_at_a_position_that_a_receipt_shows_as_lost() -> None:
    """A receipt whose neighbour is the lost leaf is from after a salvage that the log lost; a decision there is from another history."""
    shows = receipt("r", replaced(7, Lost()), 6)
    assert refused(ALL[:5], [MemoryIndex("a", ALL)], [shows]).names == ["a", "r"]
    refusal = refused(ALL[:5], receipts=[shows, receipt("q", ALL, 7)])
    assert (refusal.position, refusal.names) == (7, ["r", "q"])


@pytest.mark.parametrize("state", [2, 7, 50])
def test_an_index_whose_states_do_not_fit_its_decisions(state: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leaf does not hold the consumed states. An index that shows a state under another transaction, or one too many, is refused."""
    monkeypatch.setattr(past, "AT_ONCE", 5)
    consumed = {state_of(number): tag_of(id_of(number)) for number in range(10)} | {state_of(state): tag_of(id_of("thief"))}
    refusal = refused(ALL[:5], [MemoryIndex("sound", ALL), MemoryIndex("a", ALL, consumed=consumed)])
    assert refusal.names == ["a"]
    assert "by none" in str(refusal) if state == 50 else "by another transaction" in str(refusal)


def test_a_cited_state_may_have_an_unknown_consumer() -> None:
    """Behind a lost position a conflict may show a consumer that nobody knows: its state is in the items' conflicts, to be reserved."""
    history: list[Item] = [*ALL[:6], decided(6, "payer", 77), decided(7, "refused", cites={77: tag_of(id_of("payer"))}), ALL[8]]
    choice = chosen(ALL[:6], receipts=[receipt("r", history, 8), receipt("q", history, 7)])
    assert list(choice.items)[1:] == history[7:]
    # That position may be lost since an earlier salvage.
    history = [*ALL[:5], Lost(), decided(6, "refused", cites={77: tag_of(id_of("payer"))})]
    assert list(chosen(history[:6], [MemoryIndex("a", history)]).items) == history[6:]


# ---- refusals, row by row


def test_two_indexes_of_different_histories() -> None:
    """Two indexes with different leaves are refused at the first position where they differ, with all sources on each side."""
    other = replaced(7, decided(7, "another", 77))
    later = MemoryIndex("d", [*ALL[:9], decided(9, "another", 99)])
    refusal = refused(ALL[:6], [MemoryIndex("a", ALL), MemoryIndex("b", other), MemoryIndex("c", ALL[:9]), later])
    assert refusal.position == 7
    assert sorted(sorted(side) for side in refusal.sides) == [["a", "c", "d"], ["b"]]
    assert "position 7: two leaves" in str(refusal)


def test_the_log_went_on_after_the_cut() -> None:
    """If a worker went on in the cut log, the log itself is one side."""
    refusal = refused([*ALL[:6], decided(6, "new", 66)], [MemoryIndex("a", ALL)])
    assert (refusal.position, sorted(refusal.names)) == (6, ["a", "the log"])


def test_a_receipt_and_an_index_of_different_histories() -> None:
    """A receipt whose leaf is another than the index's is refused."""
    other = receipt("r", replaced(8, decided(8, "another", 88)), 8)
    for size in (9, 10):
        refusal = refused(ALL[:6], [MemoryIndex("a", ALL[:size])], [other])
        assert (refusal.position, refusal.names) == (8, ["a", "r"])


def test_a_receipt_whose_proof_differs() -> None:
    """A receipt of a known leaf whose proof shows another neighbour is refused."""
    refusal = refused(ALL[:6], [MemoryIndex("a", ALL)], [receipt("r", replaced(8, decided(8, "another", 88)), 9)])
    assert (refusal.position, refusal.names) == (8, ["a", "r"])


def test_two_receipts_meet_in_a_node() -> None:
    """Two receipts that nobody else covers are compared by the nodes of their proofs."""
    refusal = refused(ALL[:4], receipts=[receipt("r", ALL, 8), receipt("q", replaced(6, decided(6, "another", 66)), 9)])
    assert refusal.names == ["r", "q"]
    assert "two hashes of the leaves up to position" in str(refusal)


def test_a_node_that_follows_from_the_leaves_of_several() -> None:
    """The hash that follows from leaves of several sources is compared with a node of another's proof."""
    other = replaced(5, decided(5, "another", 55))
    # `a` covers 4, a receipt 5; another receipt shows the node over both.
    refusal = refused(ALL[:4], [MemoryIndex("a", ALL[:5])], [receipt("r", ALL, 5, size=6), receipt("q", other, 6, size=7)])
    assert set(refusal.names) == {"r", "q"}


def test_a_node_at_the_right_edge_that_follows_from_complete_ones() -> None:
    """A receipt of 15 leaves shows the node over 8 to 14, and others the leaves under it."""
    history = [decided(position, position, position) for position in range(16)]
    other = [*history[:13], decided(13, "another", 77), *history[14:]]
    shows = [receipt("r", history, 12), receipt("s", history, 14), receipt("q", other, 0, size=15)]
    refusal = refused(history[:12], receipts=shows)
    assert (refusal.position, refusal.names) == (8, ["r", "q"])


def test_a_transaction_at_two_positions() -> None:
    """A transaction that stands at two positions is refused, where it is in the log too."""
    refusal = refused(ALL[:6], receipts=[receipt("r", replaced(8, decided(8, 3, 88)), 8)])
    assert (refusal.position, refusal.names) == (8, ["r", "the log"])
    assert "stands at position 3 already" in str(refusal)
    twice = [*ALL[:6], decided(6, "x", 66), ALL[7], ALL[8], decided(9, "x", 99)]
    refusal = refused(ALL[:6], [MemoryIndex("a", twice)])
    assert "stands at position 6 already" in str(refusal)


@pytest.mark.parametrize("at_once", [3, past.AT_ONCE])
def test_a_state_consumed_twice(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that two transactions consumed is refused: both in the items, or one in the log."""
    monkeypatch.setattr(past, "AT_ONCE", at_once)
    assert chosen(ALL[:2], [MemoryIndex("a", ALL)]).end == 10
    refusal = refused(ALL[:6], receipts=[receipt("r", replaced(8, decided(8, "thief", 3)), 8)])
    assert (refusal.position, refusal.names) == (8, ["r", "the log"])
    assert "was consumed before" in str(refusal)
    refusal = refused(ALL[:6], [MemoryIndex("a", replaced(8, decided(8, "thief", 7)))])
    assert refusal.position == 8


def test_a_state_consumed_by_another_than_a_conflict_shows() -> None:
    """A conflict that shows another consumer than the one known is refused, and so is another consumer after the conflict."""
    shows = decided(8, "refused", cites={3: tag_of(id_of("somebody"))})
    refusal = refused(ALL[:6], receipts=[receipt("r", replaced(8, shows), 8)])
    assert "consumed by another transaction" in str(refusal)
    later = [*ALL[:7], decided(7, "refused", cites={9: tag_of(id_of("somebody"))}), ALL[8], ALL[9]]
    refusal = refused(ALL[:6], receipts=[receipt("r", later, 7), receipt("q", later, 9)])
    assert (refusal.position, refusal.names) == (9, ["q", "r"])


def test_a_conflict_without_a_consumer() -> None:
    """A conflict is refused if every position before it is known and none has consumed its state."""
    shows = decided(6, "refused", cites={77: tag_of(id_of("nobody"))})
    refusal = refused(ALL[:6], [MemoryIndex("a", [*ALL[:6], shows])])
    assert (refusal.position, refusal.names) == (6, ["a", "the log"])
    assert "each decision before is known" in str(refusal)


def test_log_time_goes_back() -> None:
    """Log time that falls is refused, from the log to the items and between them."""
    assert "log time goes back from 5 to 4" in str(refused(ALL[:6], receipts=[receipt("r", replaced(8, decided(8, "x", 88, time=4)), 8)]))
    refusal = refused(ALL[:6], [MemoryIndex("a", replaced(8, decided(8, "x", 88, time=6)))])
    assert (refusal.position, "log time goes back from 7 to 6" in str(refusal), refusal.sides) == (8, True, (("a",), ("a",)))
    assert chosen(ALL[:6], [MemoryIndex("a", replaced(8, decided(8, "x", 88, time=7)))]).end == 10


def test_a_receipt_without_its_request() -> None:
    """The receipt of a committed transaction without its request is refused if no index has its position; that of a rejection is not."""
    refusal = refused(ALL[:6], receipts=[receipt("r", ALL, 8, bare=True)])
    assert (refusal.position, refusal.names) == (8, ["r"])
    assert refused(ALL[:6], receipts=[receipt("r", ALL, place, bare=True) for place in (9, 8)]).position == 8
    rejected = replaced(8, decided(8, "refused", cites={3: tag_of(id_of(3))}))
    assert chosen(ALL[:6], receipts=[receipt("r", rejected, 8)]).count(Decided) == 1


def test_a_decision_at_a_final_hash() -> None:
    """A decision, of an index or a receipt, at a position that an earlier salvage put back as a hash is refused."""
    hashed = replaced(4, Hashed(leaf_hash(ALL[4].leaf)))
    for refusal in (refused(hashed, [MemoryIndex("a", ALL)]), refused(hashed, receipts=[receipt("a", ALL, 4)])):
        assert (refusal.position, refusal.names) == (4, ["the log", "a"])
    for index in (hashed, ALL[:4]):
        assert chosen(hashed, [MemoryIndex("a", index)]).items == ()


def test_two_lists_of_consumed_states() -> None:
    """Sources that agree on a leaf and not on the states that it consumed are refused."""
    other = [*ALL[:9], decided(9, 9, 9, 10)]
    assert refused(ALL[:6], [MemoryIndex("a", ALL), MemoryIndex("b", other)]).position == 9
    assert refused(ALL[:6], [MemoryIndex("a", ALL)], [receipt("r", other, 9)]).names == ["a", "r"]


def test_a_size_far_beyond_everything() -> None:
    """A checkpoint that would declare more positions lost than the limit is refused."""
    log, receipts = MemoryIndex("the log", ALL[:5]), [receipt("q", ALL, 1, size=3), receipt("r", ALL, 2)]
    with pytest.raises(ChoiceRefused, match="5 positions up to 10 would be lost, more than 4; the size 10 is shown by: r"):
        choose(log, [], receipts, lost_max=4)
    assert choose(log, [], receipts, lost_max=5).end == 10


# ---- trees


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 255, 256, 257, 300, 600])
@pytest.mark.parametrize("where", [lambda size: 0, lambda size: size // 2, lambda size: size - 1])
def test_the_first_difference_of_two_trees(size: int, where: Callable[[int], int]) -> None:
    """Two trees that differ at one leaf are found different there, also if one is longer."""
    place = where(size)
    one: list[Item] = [Lost()] * size
    other = [*one[:place], decided(place, "x"), *one[place + 1 :], Lost()]
    trees = MemoryIndex("", one).tree, MemoryIndex("", other).tree
    assert difference(*trees) == difference(*trees[::-1]) == place
    assert difference(trees[0], MemoryIndex("", [*one, Lost()]).tree) is None


def test_large_trees_are_compared_by_few_nodes() -> None:
    """The first difference of two trees of 70,000 leaves is found without reading most of their tiles."""
    size, place = 70_000, 12_345
    hashes = [number.to_bytes(32) for number in range(size)]
    read: list[tuple[int, int]] = []

    def view(leaves: list[bytes]) -> TreeView:
        tiles = Tree().append(leaves)

        def tile(level: int, index: int) -> bytes:
            read.append((level, index))
            return tiles[level, index]

        return view_at(size, tile)

    one, other = view(hashes), view([*hashes[:place], bytes(32), *hashes[place + 1 :]])
    assert difference(one, one) is None
    assert difference(one, other) == place
    assert len(set(read)) < 10


@pytest.mark.parametrize("size", [1, 2, 5, 8, 9, 257, 300])
def test_the_nodes_of_a_receipt(size: int) -> None:
    """Each node that a receipt shows is the one of the tree, and the last is the root."""
    items = [decided(position, position, position) for position in range(size)]
    larger = MemoryIndex("", [*items, Lost()]).tree
    for position in {0, size // 2, size - 1}:
        nodes = nodes_of(receipt("r", items, position))
        assert nodes == {span: larger.over(*span) for span in nodes}
        assert nodes[0, size] == MemoryIndex("", items).tree.root


def test_the_lost_leaf_is_a_leaf() -> None:
    """The tree gets the hash of the lost leaf at a lost position."""
    choice = chosen(ALL[:4], receipts=[receipt("r", ALL, 1, size=6)])
    assert choice.root == MemoryIndex("", [*ALL[:4], Lost(), Lost()]).tree.root
    assert MemoryIndex("", [Lost()]).tree.root == leaf_hash(lost_leaf(0))
