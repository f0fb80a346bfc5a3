"""Forwarding tables for OpenSM: every flow's way, every LID from everywhere, and what is refused."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weft.errors import BadInput, Unsupported
from weft.fabric.traffic import Routes
from weft.interop import opensm
from weft.interop.ibnetdiscover import read
from weft.interop.opensm import addressed, forwarding_tables, lid_tables, path_colours, read_tables, table_text
from weft.interop.subnet import read_subnet, shortest, switching
from weft.routing.traffic import job_traffic


def discovered(wires, lids=None, lmc=0):
    """ibnetdiscover's text of wires (name, port, name, port); h, a, r: adapter, aggregation node, router."""
    names = sorted({name for a, _, b, _ in wires for name in (a, b)}, key=lambda n: (n[0] != "s", n))
    number = {name: 0x1000 + 16 * i for i, name in enumerate(names)}
    letter = {name: "S" if name[0] == "s" else "R" if name[0] == "r" else "H" for name in names}
    ends = {(a, p): (b, q) for a, p, b, q in wires} | {(b, q): (a, p) for a, p, b, q in wires}
    lids = lids or {}

    def description(name):
        return "Mellanox Technologies Aggregation Node" if name[0] == "a" else name

    def lid(name, port):
        return lids.get((name, 0 if name[0] == "s" else port), 0)

    lines = ["#", "# Topology file", "#"]
    for name in names:
        mine = {port: end for (other, port), end in ends.items() if other == name}
        key = f'"{letter[name]}-{number[name]:016x}"'
        if name[0] == "s":
            lines += ["", f"switchguid=0x{number[name]:x}({number[name]:x})"]
            lines.append(f'Switch\t254 {key}\t# "{name}" base port 0 lid {lid(name, 0)} lmc 0')
        else:
            lines += ["", f'{"Rt" if name[0] == "r" else "Ca"}\t{max(mine)} {key}\t# "{description(name)}"']
        for port, (other, back) in sorted(mine.items()):
            own = "" if name[0] == "s" else f"({number[name] + port:x})"
            guid = "" if other[0] == "s" else f"({number[other] + back:x})"
            first = "" if name[0] == "s" else f"lid {lid(name, port)} lmc {lmc} "
            there = f'"{letter[other]}-{number[other]:016x}"[{back}]{guid}'
            rest = f'{first}"{description(other)}" lid {lid(other, back)} 4xNDR'
            lines.append(f"[{port}]{own}\t{there}\t# {rest}")
    return "\n".join(lines) + "\n"


def clos(leaves=3, hosts=2, spines=2, cables=1):
    wires = [(f"sleaf{i}", 1 + h, f"h{i} {h}", 1) for i in range(leaves) for h in range(hosts)]
    for leaf, spine, k in itertools.product(range(leaves), range(spines), range(cables)):
        here, there = 100 + spine * cables + k, 1 + leaf * cables + k
        wires.append((f"sleaf{leaf}", here, f"sspine{spine}", there))
    return wires


def paths_of(fabric, ways):
    """Traffic and routes of ways, each a list of names and which of parallel cables it takes."""
    links = {}
    for link, pair in enumerate(zip(fabric.source.tolist(), fabric.target.tolist(), strict=True)):
        links.setdefault(tuple(fabric.names[i] for i in pair), []).append(link)
    paths = [[links[hop][turn % len(links[hop])] for hop in itertools.pairwise(nodes)] for nodes, turn in ways]
    ends = [np.array([fabric.names.index(way[0][i]) for way in ways], dtype=np.int64) for i in (0, -1)]
    traffic = job_traffic(*ends, np.ones(len(ways)), queue_pair=np.arange(len(ways)))
    return traffic, Routes(
        indptr=np.cumsum([0] + [len(path) for path in paths]),
        links=np.array([link for path in paths for link in path], dtype=np.int64),
        usage=np.ones(sum(map(len, paths))),
        latency_s=np.zeros(len(paths)),
    )


def across(source, spine, target):
    """The way between two hosts (leaf, host), over a spine unless they share the leaf."""
    first, last = f"sleaf{source[0]}", f"sleaf{target[0]}"
    middle = [first] if source[0] == target[0] else [first, f"sspine{spine}", last]
    return ["h{} {}".format(*source), *middle, "h{} {}".format(*target)]


def planned(text, ways, **changes):
    fabric = read(text)
    return lid_tables(read_subnet(text), replace(fabric, **changes), *paths_of(fabric, ways))


def walk(subnet, ports, switch, lid):
    """The wires, each with the end it is entered at, from a switch to where a LID ends."""
    behind = {}
    for i, wire in enumerate(subnet.wires):
        behind[wire.device, wire.port] = i, 0, (wire.other, wire.other_port)
        behind[wire.other, wire.other_port] = i, 1, (wire.device, wire.port)
    way, at = [], (switch, None)
    while at[0] in ports and ports[at[0]][lid] != 0:
        assert len(way) < 20
        wire, side, at = behind[at[0], ports[at[0]][lid]]
        assert subnet.wires[wire].up
        way.append(2 * wire + side)
    return way, at


def ports_of(tables):
    """By switch and LID, from the text."""
    switch = {device.guid: i for i, device in enumerate(tables.subnet.devices)}
    return {switch[table.guid]: table.ports for table in forwarding_tables(table_text(tables))}


def check_complete(tables):
    """Every LID of every port is reached from every switch."""
    subnet, ports = tables.subnet, ports_of(tables)
    owner = {lid: end for end in subnet.ends for lid in range(end.lid, end.lid + 2**end.lmc)}
    switches = [i for i, device in enumerate(subnet.devices) if device.kind == "switch"]
    assert sorted(ports) == switches
    for switch, lid in itertools.product(switches, owner):
        way, (device, port) = walk(subnet, ports, switch, lid)
        assert device == owner[lid].device
        assert port == owner[lid].port if subnet.devices[device].kind != "switch" else way or device == switch
    assert all(sorted(row) == sorted(owner) for row in ports.values())


def check_followed(tables, traffic, routes, fabric):
    """Every flow takes its links: the fabric of the text has two links per cable, in their order."""
    ports = ports_of(tables)
    of_subnet = [i for i, device in enumerate(tables.subnet.devices) if device.kind == "switch"]
    assert len(tables.flows) == len(traffic)
    for flow, use in enumerate(tables.flows):
        links = routes.links[routes.indptr[flow] : routes.indptr[flow + 1]].tolist()
        names = [fabric.names[fabric.target[link]] for link in links]
        first = next(i for i in of_subnet if tables.subnet.devices[i].name == names[0])
        way, (device, port) = walk(tables.subnet, ports, first, use.dlid)
        assert way == links[1:]
        end = next(e for e in tables.subnet.ends if f"0x{e.guid:016x}" == use.port_guid)
        assert (device, port, end.lid + use.path_bits) == (end.device, end.port, use.dlid)
        assert tables.subnet.devices[device].name == use.destination == names[-1]
        assert use.source == fabric.names[traffic.source[flow]]


def fewest(paths):
    """Colours by trying all: paths of a colour leave no switch by different links."""
    maps = [dict(steps) for steps in paths]
    apart = [
        (i, j)
        for (i, a), (j, b) in itertools.combinations(enumerate(maps), 2)
        if any(b.get(switch, link) != link for switch, link in a.items())
    ]
    choices = (itertools.product(range(count), repeat=len(maps)) for count in itertools.count(1))
    colours = itertools.chain.from_iterable(choices)
    return 1 + max(next(c for c in colours if all(c[i] != c[j] for i, j in apart)), default=0)


def packed(wires, lmc=0):
    """LIDs as a subnet manager without a plan gives them: in the order of the ports."""
    ends = sorted({(n, 0 if n[0] == "s" else p) for a, p, b, q in wires for n, p in ((a, p), (b, q))})
    lids, free = {}, 1
    for name, port in ends:
        size = 1 if name[0] == "s" else 2**lmc
        free += -free % size
        lids[name, port] = free
        free += size
    return lids


@st.composite
def cases(draw):
    leaves, hosts = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    spines, cables = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    wires = clos(leaves, hosts, spines, cables)
    host = st.tuples(st.integers(0, leaves - 1), st.integers(0, hosts - 1))
    flow = st.tuples(host, st.integers(0, spines - 1), host, st.integers(0, cables - 1))
    flows = draw(st.lists(flow.filter(lambda f: f[0] != f[2]), max_size=7))
    lmc = draw(st.sampled_from([None, 0, 1]))
    text = discovered(wires, None if lmc is None else packed(wires, lmc), lmc or 0)
    broken = draw(st.none() | st.tuples(st.integers(0, leaves - 1), st.integers(0, spines - 1)))
    return text, [(across(a, spine, b), turn) for a, spine, b, turn in flows], broken if spines > 1 else None


@given(cases())
def test_every_flow_takes_its_way_and_every_lid_is_reached(case):
    text, ways, broken = case
    fabric = read(text)
    if broken is not None:
        leaf, spine = fabric.names.index(f"sleaf{broken[0]}"), fabric.names.index(f"sspine{broken[1]}")
        down = np.flatnonzero((fabric.source == leaf) & (fabric.target == spine))
        fabric = fabric.failed(links=down)
    traffic, routes = paths_of(fabric, ways)
    assume(fabric.up[routes.links].all())
    subnet = read_subnet(text)
    tables = lid_tables(subnet, fabric, traffic, routes)
    check_complete(tables)
    check_followed(tables, traffic, routes, fabric)
    bits = opensm.path_bits(tables)
    again = read_tables(table_text(tables), subnet, fabric, traffic, path_bits=bits)
    assert (again.indptr.tolist(), again.links.tolist()) == (routes.indptr.tolist(), routes.links.tolist())
    kinds = {}
    for flow, use in enumerate(tables.flows):
        links = routes.links[routes.indptr[flow] + 1 : routes.indptr[flow + 1]].tolist()
        kinds.setdefault(use.port_guid, set()).add(tuple((int(fabric.source[link]), link) for link in links))
    most = max([fewest(sorted(paths)) for paths in kinds.values()], default=1)
    assert tables.lmc == (most - 1).bit_length()
    bases = [end.lid for end in tables.subnet.ends]
    assert tables.reassigned == (bases != [end.lid for end in subnet.ends])
    sizes = [2**end.lmc for end in tables.subnet.ends]
    assert all(lid % size == 0 and lid > 0 for lid, size in zip(bases, sizes, strict=True))
    kept = [[int(word, 16) for word in line.split()] for line in opensm.guid2lid(tables).split("\n\n") if line]
    assert sorted(kept) == sorted([end.guid, end.lid, end.lid + 2**end.lmc - 1] for end in tables.subnet.ends)
    options = dict(line.split(" ") for line in opensm.configuration(tables).splitlines() if line[0] != "#")
    assert (int(options["lmc"]), options["routing_engine"]) == (tables.lmc, "file")
    assert ("honor_guid2lid_file" in options) == tables.reassigned
    assert table_text(tables) == table_text(lid_tables(subnet, fabric, traffic, routes))


@given(st.lists(st.dictionaries(st.integers(0, 3), st.integers(0, 2), min_size=1), min_size=1, max_size=7))
def test_lids_are_as_few_as_trying_all_gives(maps):
    paths = list(dict.fromkeys(tuple(sorted(steps.items())) for steps in maps))
    colours = path_colours(paths)
    for colour in set(colours):
        merged = {}
        for steps in itertools.compress(paths, [c == colour for c in colours]):
            assert all(merged.setdefault(switch, link) == link for switch, link in steps)
    assert max(colours).bit_length() == (fewest(paths) - 1).bit_length()


def test_lids_that_only_a_search_spares():
    """No three of these paths differ pairwise, but taking the most contested first spends three LIDs."""
    paths = [((0, 2), (4, 0)), ((1, 2), (4, 2)), ((2, 0),), ((0, 1),), ((2, 2), (4, 0)), ((2, 2),)]
    assert max(path_colours(paths)) == fewest(paths) - 1 == 1


@pytest.mark.parametrize(
    ("lids", "lmc", "kept"),
    [
        ({"h0 0": 4, "h1 0": 6}, 1, True),
        ({"h0 0": 4, "h1 0": 7}, 1, False),
        ({"h0 0": 4, "h1 0": 4}, 0, False),
        ({"h0 0": 4, "h1 0": 0}, 0, False),
        ({"h0 0": 4, "h1 0": 0xBFFF}, 0, True),
        ({"h0 0": 4, "h1 0": 0xC000}, 0, False),
        ({"h0 0": 4, "h1 0": 8}, 1, False),
    ],
)
def test_when_lids_fit(lids, lmc, kept):
    wires = clos(leaves=2, hosts=1, spines=1)
    switches = {("sleaf0", 0): 1, ("sleaf1", 0): 9, ("sspine0", 0): 3}
    text = discovered(wires, switches | {(name, 1): lid for name, lid in lids.items()})
    placed, new = addressed(read_subnet(text), lmc)
    assert new is not kept
    bases = {placed.devices[end.device].name: end.lid for end in placed.ends}
    assert ({name: bases[name] for name in lids} == lids) is kept


def test_what_a_subnet_has_besides_a_fabric():
    text = discovered(clos(leaves=2, hosts=1, spines=1), {("sleaf0", 0): 7, ("h1 0", 1): 12}, 2)
    text = text.replace("switchguid=0x1000(1000)", "switchguid=0x1000(10ff)")
    text = text.replace('"sleaf0" base', '"sleaf0 lid 5" base').replace('"sleaf0" lid', '"sleaf0 lid 5 lmc 1" lid')
    subnet = read_subnet(text)
    names = [device.name for device in subnet.devices]
    ends = {names[end.device]: (end.port, end.guid, end.lid, end.lmc) for end in subnet.ends}
    assert ends["sleaf0 lid 5"] == (0, 0x10FF, 7, 0)
    assert ends["h0 0"] == (1, 0x1031, 0, 2)
    assert ends["h1 0"] == (1, 0x1041, 12, 2)
    assert {(subnet.devices[w.device].name, w.port, w.other_port) for w in subnet.wires} == {
        ("sleaf0 lid 5", 1, 1),
        ("sleaf0 lid 5", 100, 1),
        ("sleaf1", 1, 1),
        ("sleaf1", 100, 2),
    }
    less = re.sub(r"# lid \d+ lmc 2 ", "# ", text)
    assert {e.guid: (e.lid, e.lmc) for e in read_subnet(less).ends} == {e.guid: (e.lid, 0) for e in subnet.ends}
    assert set(read(text).names) == set(names)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("(1031)", "", "port 1 of h0 0 has no GUID"),
        ("(1031)", "(1041)", "port 1 of h1 0 has a GUID that another port has"),
        ("[100]", "[255]", "port 255 has two cables, or no number from 1 to 254"),
        ("[100]", "[0]", "port 0 has two cables, or no number"),
    ],
)
def test_a_subnet_that_cannot_be_addressed(old, new, words):
    text = discovered(clos(leaves=2, hosts=1, spines=1))
    assert old in text
    with pytest.raises(BadInput, match=words):
        read_subnet(text.replace(old, new))


def test_tables_of_dump_fts_are_read():
    text = """Unicast lids [0x0-0x1b] of switch DR path slid 0; dlid 0; 0,1,3 guid 0x0000000000200003 (Leaf3):
  Lid  Out   Destination
       Port     Info
0x0002 003 : (Channel Adapter portguid 0x0000000000100001: 'Hca0')
0x0003 005 : (path #2 out of 2: portguid 0x0000000000100001)
0x0004 005 :
3 valid lids dumped
"""
    (table,) = forwarding_tables(text)
    assert table.guid == 0x200003
    assert table.ports == {2: 3, 3: 5, 4: 5}
    assert table.owners == {2: 0x100001, 3: 0x100001}


def test_ports_that_no_flow_uses_are_spread():
    tables = planned(discovered(clos(leaves=2, hosts=4, spines=2, cables=2)), [])
    leaf = tables.switches.index(next(i for i, d in enumerate(tables.subnet.devices) if d.name == "sleaf0"))
    ports = [
        port
        for port, owner in zip(tables.ports[leaf].tolist(), tables.owner.tolist(), strict=True)
        if tables.subnet.devices[tables.subnet.ends[owner].device].name.startswith("h1")
    ]
    assert sorted(ports) == [100, 101, 102, 103]


def three_layers():
    """Two pods of two leaves and two spines; core i joins the spines i."""
    wires = [(f"sleaf{i}", 1, f"h{i} 0", 1) for i in range(4)]
    wires += [(f"sleaf{i}", 100 + j, f"sspine{i // 2}{j}", 1 + i % 2) for i in range(4) for j in (0, 1)]
    wires += [(f"sspine{p}{j}", 100, f"score{j}", 1 + p) for p in (0, 1) for j in (0, 1)]
    return wires


def test_legal_ways_are_preferred_to_equally_short_ones_with_a_turn():
    wires = [("sa", 1, "h0", 1), ("sb", 1, "h1", 1), ("sc", 1, "h2", 1)]
    wires += [("sa", 2, "st0", 1), ("sb", 2, "st0", 2), ("sb", 3, "st1", 1), ("sc", 2, "st1", 2)]
    wires += [("st0", 9, "su", 1), ("st1", 9, "su", 2)]
    subnet = read_subnet(discovered(wires))
    names = [device.name for device in subnet.devices]
    ways = shortest(switching(subnet), names.index("sc"), {})
    assert {names[switch]: ports for switch, ports in ways.items()} == {
        "sa": [2],
        "sb": [3],
        "st0": [9],
        "st1": [2],
        "su": [2],
    }


def test_flows_in_a_part_that_is_cut_off():
    text = discovered(clos(leaves=2, hosts=2, spines=1))
    fabric = read(text)
    traffic, routes = paths_of(fabric, [(across((1, 0), 0, (1, 1)), 0)])
    spine = np.array([fabric.names.index("sspine0")])
    with pytest.raises(Unsupported, match="largest part"):
        lid_tables(read_subnet(text), fabric.failed(nodes=spine), traffic, routes)


def test_a_switch_out_of_reach_is_left_out():
    text = discovered(clos())
    fabric = read(text)
    spine = np.array([fabric.names.index("sspine1")])
    tables = lid_tables(read_subnet(text), fabric.failed(nodes=spine), *paths_of(fabric, []))
    assert len(tables.switches) == 4
    assert len(tables.lids) == 4 + 6
    assert "sspine1" not in table_text(tables)


def simple_paths(neighbours, start, end):
    """All ways between two nodes that pass none twice."""
    ways, found = [[start]], []
    while ways:
        way = ways.pop()
        for other in sorted(neighbours[way[-1]] - set(way)):
            (found if other == end else ways).append([*way, other])
    return sorted(found)


@given(st.data())
def test_any_ways_on_any_switches(data):
    count = data.draw(st.integers(2, 6))
    edges = {(data.draw(st.integers(0, i - 1)), i) for i in range(1, count)}
    more = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda e: e[0] < e[1])
    edges = sorted(edges | data.draw(st.sets(more, max_size=6)))
    wires = [(f"s{i}", 1, f"h{i}", 1) for i in range(count)]
    wires += [(f"s{a}", 2 + b, f"s{b}", 2 + a) for a, b in edges]
    beside = {i: {b for a, b in edges if a == i} | {a for a, b in edges if b == i} for i in range(count)}
    ways = []
    for _ in range(data.draw(st.integers(0, 6))):
        a, b = data.draw(more)
        way = data.draw(st.sampled_from(simple_paths(beside, a, b)))
        ways.append(([f"h{a}", *(f"s{i}" for i in way), f"h{b}"], 0))
    text = discovered(wires)
    fabric = read(text)
    traffic, routes = paths_of(fabric, ways)
    tables = lid_tables(read_subnet(text), fabric, traffic, routes)
    check_complete(tables)
    check_followed(tables, traffic, routes, fabric)


@given(st.data())
def test_any_ways_up_and_down_three_layers(data):
    """Every spine joins both cores: ways may climb higher than they must, and tables still make no turn."""
    wires = three_layers() + [(f"sspine{p}{j}", 101, f"score{1 - j}", 3 + p) for p in (0, 1) for j in (0, 1)]
    bit, leaf = st.integers(0, 1), st.integers(0, 3)
    ways = []
    for a, b in data.draw(st.lists(st.tuples(leaf, leaf).filter(lambda e: e[0] != e[1]), max_size=6)):
        up, core, down = data.draw(st.tuples(bit, bit, bit))
        middle = [f"sspine{a // 2}{up}", f"score{core}", f"sspine{b // 2}{down}"]
        middle = middle[:1] if middle[0] == middle[2] else middle
        ways.append(([f"h{a} 0", f"sleaf{a}", *middle, f"sleaf{b}", f"h{b} 0"], 0))
    text = discovered(wires)
    fabric = read(text)
    traffic, routes = paths_of(fabric, ways)
    tables = lid_tables(read_subnet(text), fabric, traffic, routes)
    assert switching(tables.subnet).level is not None
    check_complete(tables)
    check_followed(tables, traffic, routes, fabric)


def test_adapters_with_two_ports_and_flows_inside_a_host():
    wires = [(f"s{p}", 1 + i, f"h{i}", 1 + p) for i in (0, 1) for p in (0, 1)]
    wires += [(f"s{p}", 9, "s9", 1 + p) for p in (0, 1)] + [("s0", 8, "h2", 1)]
    text = discovered(wires).replace('"h2"', '"h0 second"').replace('"h0"', '"h0 first"')
    fabric = read(text, scale_up_Bps=1e9)
    within = ["h0 first", "scale-up 0 (h0)", "h0 second"]
    ways = [(["h0 first", "s0", "h1"], 0), (within, 0), (["h0 first", "s1", "h1"], 0), (["h0 second", "s0", "h1"], 0)]
    traffic, routes = paths_of(fabric, ways)
    tables = lid_tables(read_subnet(text), fabric, traffic, routes)
    check_complete(tables)
    assert tables.lmc == 0
    assert [use.source for use in tables.flows] == ["h0 first", "h0 first", "h0 second"]
    guids = [int(use.port_guid, 16) for use in tables.flows]
    assert guids[0] == guids[2] == guids[1] - 1
    relayed, paths = paths_of(fabric, [([*within, "s0", "h1"], 0)])
    with pytest.raises(Unsupported, match="passes through"):
        lid_tables(read_subnet(text), fabric, relayed, paths)


def test_routers_and_aggregation_nodes_have_lids():
    wires = [*clos(), ("sspine0", 90, "r0", 1), ("sspine1", 90, "a0", 1)]
    tables = planned(discovered(wires), [(across((0, 0), 1, (2, 1)), 0)])
    check_complete(tables)
    text = table_text(tables)
    assert text.count("Router portguid") == 5
    assert text.count("Aggregation Node") == 5


def test_too_many_paths_and_too_many_lids_are_refused():
    wires = [("sa", 1, "h0", 1), ("sb", 1, "h1", 1)]
    wires += [wire for s in range(129) for wire in (("sa", 2 + s, f"st{s}", 1), ("sb", 2 + s, f"st{s}", 2))]
    ways = [(["h0", "sa", f"st{s}", "sb", "h1"], 0) for s in range(129)]
    with pytest.raises(Unsupported, match="flows to h1 need 129 LIDs, and LMC 7 allows 128"):
        planned(discovered(wires), ways)
    for i in range(382):
        wires += [(f"sx{i}", 1, f"h{i + 2}", 1), (f"sx{i}", 2, f"st{i % 129}", 3 + i // 129)]
    with pytest.raises(Unsupported, match=r"384 adapter ports with 128 LIDs.*49,151"):
        planned(discovered(wires), ways[:65])


@pytest.mark.slow_but(2)
@pytest.mark.parametrize(("ports", "switches", "lmc"), [(383, 127, 7), (382, 255, 7), (40000, 9151, 0)])
def test_the_last_lids(ports, switches, lmc):
    def subnet(switches):
        kinds = ["switch"] * switches + ["adapter"] * ports
        text = read_subnet(discovered(clos(leaves=2, hosts=1, spines=1)))
        device, end = text.devices[0], text.ends[0]
        return replace(
            text,
            devices=tuple(replace(device, kind=kind, guid=i + 1) for i, kind in enumerate(kinds)),
            ends=tuple(replace(end, device=i, guid=i + 1) for i in range(len(kinds))),
            wires=(),
        )

    full, new = addressed(subnet(switches), lmc)
    assert new
    lids = [lid for end in full.ends for lid in range(end.lid, end.lid + 2**end.lmc)]
    assert len(set(lids)) == len(lids) == switches + ports * 2**lmc
    assert max(lids) == 0xBFFF
    with pytest.raises(Unsupported, match="unicast LIDs"):
        addressed(subnet(switches + 1), lmc)


def test_a_fabric_of_another_text():
    text, other = discovered(clos()), discovered(clos(leaves=2))
    doubled = discovered(clos(cables=2))
    for subnet, fabric, words in (
        (text, other, "the fabric has no"),
        (other, text, "the subnet has no"),
        (doubled, text, "2 cables join"),
    ):
        with pytest.raises(BadInput, match=words):
            lid_tables(read_subnet(subnet), read(fabric), *paths_of(read(fabric), []))


def written():
    text = discovered(clos(), packed(clos()))
    return table_text(planned(text, [(across((0, 0), 1, (1, 0)), 0)]))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("0x0001 ", "0xzz01 ", "is not an entry"),
        ("0x0001 ", "0x0002 ", "given twice"),
        ("Unicast", "0x0001 001 :\nUnicast", "before any switch"),
        (" guid 0x0", " guid x", "names no switch"),
    ],
)
def test_dumps_that_cannot_be_read(old, new, words):
    with pytest.raises(BadInput, match=words):
        forwarding_tables(written().replace(old, new))
    with pytest.raises(BadInput, match="holds no table"):
        forwarding_tables("")


def test_a_plan_that_goes_down_and_up_is_not_written():
    way = ["h0 0", "sleaf0", "sspine0", "sleaf2", "sspine1", "sleaf1", "h1 0"]
    tables = planned(discovered(clos()), [(way, 0)])
    with pytest.raises(Unsupported, match="go down to sleaf2 and then up"):
        table_text(tables)
