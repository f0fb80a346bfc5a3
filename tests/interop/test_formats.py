"""The table of formats: every function that it names is there, and every name is used once for its noun."""

import pytest

from weft.errors import UnknownName
from weft.interop.formats import FORMATS, writer_of


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form.noun}-{form.name}")
def test_functions_are_there(form):
    assert form.reader or form.writer
    assert not form.reader or callable(form.read)
    assert not form.writer or callable(form.write)
    assert form.title == form.title.strip() != ""


def test_names_are_unique_for_a_noun():
    assert len({(form.noun, form.name) for form in FORMATS}) == len(FORMATS)


def test_formats_that_nobody_knows():
    with pytest.raises(UnknownName, match=r"unknown export of routes 'fr'.*did you mean"):
        writer_of("routes", "fr", "export of routes")
