"""Cumulus' configurations, and what their check finds."""

import pytest

from weft.interop.netops import cumulus, frr
from weft.interop.text.yaml import parse_yaml, scalars


def test_files_agree_with_each_other_and_with_frrs(planned):
    fabric, traffic, routed = planned(8)
    files = cumulus.write(fabric, traffic, routed)
    beside = frr.write(fabric, traffic, routed)
    assert files.pop("ports.csv").splitlines()[1] == "leaf-0,swp1,leaf-0,accelerator-0"
    assert sorted(files) == sorted(f"{name}.yaml" for name in fabric.names[8:])
    for name, text in files.items():
        assert cumulus.lint(text) == ()
        assert text.startswith("- set:\n")
        table = scalars(parse_yaml(text, where=name))[0]["set"]
        other = beside[name.replace(".yaml", ".conf")]
        assert f"router bgp {table['router']['bgp']['autonomous-system']}\n" in other
        for each in table["interface"].values():
            assert all(f" ip address {address}\n" in other for address in each["ip"]["address"])
        for address in table["vrf"]["default"]["router"]["bgp"]["neighbor"]:
            assert f" neighbor {address} peer-group FABRIC\n" in other


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("- set:", "- unset:", "no configuration"),
        ("10.128.0.1/31", "10.128.0.3/31", "is twice an address"),
        ("10.128.0.0:", "10.200.0.0:", "no port reaches 10.200.0.0"),
        ("mode: lossless", "mode: lost", "neither lossless nor lossy"),
        ("autonomous-system: 42", "autonomous-system: 99942", "is no autonomous system"),
    ],
)
def test_what_the_check_finds(planned, old, new, words):
    text = cumulus.write(*planned(8))["leaf-0.yaml"]
    assert old in text
    assert words in " ".join(cumulus.lint(text.replace(old, new, 1)))
