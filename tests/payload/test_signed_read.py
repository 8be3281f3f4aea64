"""The signature of a call that only reads: any headers give one signature, none, or `Malformed`.

tests/notary/http/test_reads.py has a worker verify signatures.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.errors import Malformed
from payload.signed_read import message_to_sign, parameters_of, read_signature, signature_headers

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
PIECES = """sig= ("@method"·"@path"·"@query") ("@method") () ;created= ;keyid= ;tag= ;expires= ;alg= "a" "%ff" "
1 9999999999999999 -1 : AAAA = , ; \\ \xff ·"""
pieces = st.sampled_from([piece.replace("·", " ") for piece in PIECES.split()])
texts = st.lists(pieces, max_size=12).map(lambda parts: "".join(parts).encode("latin-1")) | st.binary(max_size=60)


@given(names, names, st.integers(0, 2**40), st.binary(min_size=1, max_size=80))
def test_what_is_written_is_read(party: str, notary_name: str, created_s: int, signature: bytes) -> None:
    """A signature is parsed with any names; both sides sign the same bytes, for that method, path and query alone."""
    parameters = parameters_of(party, notary_name, created_s)
    given = [(name.lower().encode(), value.encode()) for name, value in signature_headers(parameters, signature).items()]
    found = read_signature(given)
    assert found is not None
    assert (found.party, found.notary_name, found.created_s, found.signature) == (party, notary_name, created_s, signature)
    assert found.message("GET", "/a", "b=c") == message_to_sign("GET", "/a", "b=c", parameters)
    assert len({found.message(*call) for call in (("GET", "/a", ""), ("HEAD", "/a", ""), ("GET", "/b", ""), ("GET", "/a", "b"))}) == 4


@given(st.lists(st.tuples(st.sampled_from([b"signature-input", b"signature", b"host"]), texts), max_size=4))
def test_reading_is_total(headers: list[tuple[bytes, bytes]]) -> None:
    """No header raises another error than `Malformed`; no header at all is None."""
    try:
        found = read_signature(headers)
    except Malformed:
        return
    assert (found is None) == all(name == b"host" for name, _ in headers)


GOOD = parameters_of("P", "N", 5)


@pytest.mark.parametrize(
    ("parameters", "signature", "problem"),
    [
        (GOOD.replace('"@query"', '"@query" "@path"'), "AAAA", "each once, and nothing else"),
        (f'{GOOD};unknown="x"', "AAAA", "give created, keyid and tag, each once"),
        (GOOD.replace("=5", '="5"'), "AAAA", "created and expires are numbers"),
        (GOOD.replace('"P"', "5"), "AAAA", "all other parameters are strings"),
        (GOOD, "AAA==", "the signature is base64"),
    ],
)
def test_another_form_is_malformed(parameters: str, signature: str, problem: str) -> None:
    """There is one form of a signature, as docs/http.md has it."""
    with pytest.raises(Malformed, match=problem):
        read_signature([(b"signature-input", f"sig={parameters}".encode()), (b"signature", f"sig=:{signature}:".encode())])


def test_the_order_of_components_is_the_clients() -> None:
    """The signed bytes have the lines in that order."""
    parameters = GOOD.replace('"@method" "@path"', '"@path" "@method"')
    found = read_signature([(b"signature-input", f"sig={parameters}".encode()), (b"signature", b"sig=:AAAA:")])
    assert found is not None
    assert found.message("GET", "/a", "").startswith(b'"@path": /a\n"@method": GET\n"@query": ?\n')
