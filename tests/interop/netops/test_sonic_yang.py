"""SONiC's public YANG models (sonic-buildimage, src/sonic-yang-models) take what is written for SONiC.

Skipped where yanglint (Debian: libyang2-tools) is not installed, or WEFT_SONIC_YANG does not name a folder of models,
with the templates (``*.yang.j2``) of ``yang-templates`` beside those of ``yang-models``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from weft.fabric.families import clos, rail
from weft.fabric.paths import routes
from weft.interop.netops import sonic
from weft.routing.traffic import job_traffic

FOLDER = os.environ.get("WEFT_SONIC_YANG")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("yanglint") is None, reason="yanglint is not installed"),
    pytest.mark.skipif(not FOLDER, reason="WEFT_SONIC_YANG is not set"),
]
LIST = re.compile(r"list\s+(\w+)\s*\{(?:(?!list\s+\w+\s*\{).)*?key\s+\"([^\"]+)\"", re.DOTALL)
MAPS = ("DSCP_TO_TC_MAP", "TC_TO_QUEUE_MAP", "TC_TO_PRIORITY_GROUP_MAP", "MAP_PFC_PRIORITY_TO_QUEUE")


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """The models, with the templates filled in."""
    jinja2 = pytest.importorskip("jinja2")
    folder = tmp_path_factory.mktemp("yang")
    for path in sorted(Path(str(FOLDER)).rglob("*.yang*")):
        text = path.read_text()
        if path.suffix == ".j2":
            text = jinja2.Template(text).render(yang_model_type="py")
        (folder / path.name.removesuffix(".j2")).write_text(text)
    return folder


def as_yang(table: dict, models: Path) -> tuple[dict, set[str]]:
    """Tables of config_db.json as data of the models, and the modules that they are of."""
    found: dict = {}
    modules = set()
    texts = {path.stem: path.read_text() for path in sorted(models.glob("sonic-*.yang"))}
    for name, rows in table.items():
        alone = name in ("SWITCH_HASH", "DEVICE_METADATA")
        module = next(
            stem
            for stem, text in texts.items()
            if re.search(rf"container {name}\s*\{{", text) and (alone or f"list {name}_LIST" in text)
        )
        modules.add(module)
        inner = texts[module][re.search(rf"container {name}\s*\{{", texts[module]).start() :]
        keys = [(one, words.split()) for one, words in LIST.findall(inner)]
        body: dict = {}
        for key, row in rows.items():
            parts = key.split("|")
            fitting = [(one, words) for one, words in keys if len(words) == len(parts) and one.startswith(name)]
            if not fitting or key == "localhost" or (name == "SWITCH_HASH"):
                body[key] = row
                continue
            one, words = fitting[0]
            entry = dict(zip(words, parts, strict=True))
            if name in MAPS:
                leaf = {"DSCP_TO_TC_MAP": ("dscp", "tc"), "TC_TO_PRIORITY_GROUP_MAP": ("tc", "pg")}
                leaf |= {"TC_TO_QUEUE_MAP": ("tc", "qindex"), "MAP_PFC_PRIORITY_TO_QUEUE": ("pfc_priority", "qindex")}
                entry[name] = [dict(zip(leaf[name], pair, strict=True)) for pair in row.items()]
            else:
                entry |= row
            body.setdefault(one, []).append(entry)
        found.setdefault(f"{module}:{module}", {})[name] = body
    return found, modules


def typed(value):
    """Numbers and truths as YANG's JSON has them: small whole numbers bare, 64-bit ones as text."""
    if isinstance(value, dict):
        return {key: (one if key in TEXTS else typed(one)) for key, one in value.items()}
    if isinstance(value, list):
        return [typed(one) for one in value]
    if value in ("true", "false"):
        return value == "true"
    return int(value) if isinstance(value, str) and value.isdigit() else value


TEXTS = {"dscp", "qindex", "pg", "pfc_priority", "pfc_enable", "lanes"}
TEXTS |= {f"{colour}_{end}_threshold" for colour in ("green", "yellow", "red") for end in ("min", "max")}
TEXTS |= {f"{colour}_drop_probability" for colour in ("green", "yellow", "red")}


def problems(table: dict, models: Path, folder: Path) -> str:
    """What yanglint says, with ports of a platform beside; empty if nothing."""
    ports = {name: {"lanes": str(at), "speed": "100000"} for at, name in enumerate(
        name for name in table["INTERFACE"] if "|" not in name)}  # fmt: skip
    data, modules = as_yang(table | {"PORT": ports}, models)
    path = folder / "data.json"
    path.write_text(json.dumps(typed(data)))
    files = [str(models / f"{module}.yang") for module in sorted(modules)]
    command = ["yanglint", "-p", str(models), "-t", "config", *files, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return "".join(re.findall(r"libyang err *:.*|YANGLINT\[E\]:.*", ran.stderr)) if ran.returncode else ""


@pytest.mark.parametrize("kind", ["clos", "rail", "failed"])
def test_the_models_take_it(models, tmp_path, kind) -> None:
    fabric = clos.build(16, radix=8, bandwidth_Bps=50e9, tiers=2)
    if kind == "rail":
        from weft.fabric.dimension import Dimension

        domain = Dimension(size=4, kind="switch", bandwidth_Bps=450e9)
        fabric = rail.optimized(32, radix=8, bandwidth_Bps=50e9, scale_up=domain)
    elif kind == "failed":
        fabric = fabric.failed(nodes=fabric.nodes_of("spine")[:1])
    ends = np.array([0]), np.array([8])
    files = sonic.write(fabric, job_traffic(*ends, np.ones(1)), routes(fabric, *ends))
    checked = [text for name, text in files.items() if name.endswith(".json")]
    assert len(checked) > 4
    for text in (checked[0], checked[-1]):
        table = json.loads(text)
        assert problems(table, models, tmp_path) == ""
        table["BGP_NEIGHBOR"][next(iter(table["BGP_NEIGHBOR"]))]["asn"] = "0"
        assert "ASN must be greater than 0" in problems(table, models, tmp_path)
        table = json.loads(text)
        table["PORT_QOS_MAP"]["Ethernet0"]["pfc_enable"] = "9"
        assert "pattern" in problems(table, models, tmp_path)
        table = json.loads(text)
        table["QUEUE"]["Ethernet0|3"]["wred_profile"] = "NONE"
        assert "NONE" in problems(table, models, tmp_path)


def test_tables_by_kind_of_packet_are_newer_than_the_models(models, tmp_path) -> None:
    fabric = clos.build(16, radix=8, bandwidth_Bps=50e9, tiers=2)
    ends = np.array([0]), np.array([8])
    files = sonic.write(fabric, job_traffic(*ends, np.ones(1)), routes(fabric, *ends), queue_pairs=True)
    assert "ecmp_hash_ipv4_rdma" in problems(json.loads(files["leaf-0.json"]), models, tmp_path)
