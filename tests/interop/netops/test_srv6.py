"""SRv6 configurations and host scripts: packets followed segment by segment, and what the checks find."""

import re
import shutil
import subprocess
from ipaddress import IPv6Address, IPv6Network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import Unsupported
from weft.interop.netops import srv6
from weft.interop.netops.addressing import addressing
from weft.interop.netops.plan_paths import planned_paths


def followed(fabric, files, node, segments, first):
    """The nodes that an outer header passes, shifted at every node whose segment it names."""
    plan = addressing(fabric)
    owner = {plan.link_ipv6(link): int(fabric.source[link]) for link in range(fabric.links)}
    nodes, rest = [node, first], list(segments)
    where = rest.pop(0)
    for _ in range(50):
        words = IPv6Address(where).exploded.split(":")
        here = IPv6Address(plan.segment(nodes[-1])).exploded.split(":")[:3]
        if words[:3] == here:
            if words[3] == "fe06":
                return tuple(nodes)
            where = ":".join(words[:2] + words[3:] + ["0000"])
            if where.endswith(":".join(["0000"] * 6)):
                where = rest.pop(0)
            continue
        text = files[f"{plan.names[nodes[-1]]}.conf"]
        for prefix, gateway in re.findall(r"^ipv6 route (\S+/48) (\S+) eth\d+$", text, re.MULTILINE):
            if IPv6Address(where) in IPv6Network(prefix):
                nodes.append(owner[gateway])
                break
        else:
            raise AssertionError(f"{plan.names[nodes[-1]]} has no route to {where}")
    raise AssertionError("a loop")


@settings(max_examples=15)
@given(st.integers(0, 50), st.sampled_from([(8, 4), (16, 4), (32, 8), (54, 6)]))
def test_packets_follow_the_plan(planned, seed, size):
    fabric, traffic, routed = planned(size[0], radix=size[1], seed=seed)
    plan = addressing(fabric)
    files, scripts = (write(fabric, traffic, routed) for write in (srv6.write, srv6.write_script))
    assert len(files) == fabric.nodes
    assert not [problem for text in files.values() for problem in srv6.lint(text)]
    assert not [problem for text in scripts.values() for problem in srv6.lint_script(text)]
    for path in planned_paths(fabric, traffic, routed):
        name, to = plan.names[path.source], plan.ipv6(path.target)
        route = re.search(rf"route {to}/128 \S+ \S+ segments (\S+)", files[f"{name}.conf"])
        assert followed(fabric, files, path.source, route[1].split("/"), path.nodes[1]) == path.nodes
        command = re.search(rf"add {to}/128 encap seg6 mode encap segs (\S+)", scripts[f"{name}.sh"])
        assert command[1].split(",") == route[1].split("/")
        assert f"{plan.end(path.target)}/128" in scripts[f"{plan.names[path.target]}.sh"]


@pytest.mark.parametrize("write", [srv6.write, srv6.write_script])
def test_routes_are_per_destination(planned, write):
    with pytest.raises(
        Unsupported, match=r"take different paths -- plan one path per pair.*--router ecmp-paper.*roce-csv"
    ):
        write(*planned(16, radix=4, parts=8))
    with pytest.raises(Unsupported, match="split over several"):
        write(*planned(8, mode="spray"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("behavior uN", "behavior uX", "is not known here"),
        ("sid fcbb:bbbb:", "sid fcbb:bbbb:f", "is not the locator"),
        (":fe06::/64", ":fe06:1::/64", "is no address"),
        ("segments fcbb:", "segments fcbc:", "is not in fcbb:bbbb::/32"),
        (":fe06::\n", ":fe07::\n", "takes the outer header off"),
        ("segments fcbb:bbbb:", "segments fcbb:bbbb:0:", "has a gap"),
        ("\nend\n", "\n", "does not come to its end"),
        ("source-address fcbb", "source-address zz", "is not known here"),
        ("source-address fcbb:bbbb:", "source-address fcbb:bbbb:::", "is no address"),
    ],
)
def test_what_the_check_finds(planned, old, new, words):
    text = next(t for t in srv6.write(*planned(8)).values() if "segments" in t)
    assert old in text
    assert words in " ".join(srv6.lint(text.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("set -e", "set +e", "does not begin"),
        ("ip sr", "rm", "is not known"),
        ("tunsrc set fcbb", "tunsrc set :::", "is no address"),
        ("dev eth1", "dev eth1; reboot", "is not known"),
        ("segs fcbb", "segs fcb", "is not in fcbb"),
        ("segs fcbb:", "segs ,fcbb:", "is no address"),
    ],
)
def test_what_the_check_of_scripts_finds(planned, old, new, words):
    text = next(t for t in srv6.write_script(*planned(8)).values() if "segs" in t)
    assert old in text
    assert words in " ".join(srv6.lint_script(text.replace(old, new, 1)))
    last = text.splitlines()[-1]
    assert "given twice" in " ".join(srv6.lint_script(f"{text}{last}\n"))


def can_route():
    """Whether a network namespace of our own (which root makes) takes routes with segments."""
    if not (shutil.which("unshare") and shutil.which("ip")):
        return False
    return run("ip -6 route add fcbb::1/128 encap seg6 mode encap segs fcbb::2 dev lo") == 0


def run(script):
    command = ["unshare", "--net", "--uts", "sh", "-c", f"ip link set lo up; {script}"]
    return subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.slow
def test_linux_takes_the_commands(planned):
    if not can_route():
        pytest.skip("no network namespaces with segment routing")
    for text in srv6.write_script(*planned(8)).values():
        assert run(text.replace("dev eth1", "dev lo")) == 0
