"""Every reader of the library, what makes an input of bytes for it, and good inputs to begin with."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import numpy as np

from weft.errors import BadInput

TESTS = Path(__file__).parents[1]
EXAMPLES = TESTS.parent / "examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A reader, or several that one input goes through.

    Attributes:
        names: full names of the functions.
        read: takes the bytes of an input and an empty folder, which it may fill.
        seeds: good inputs.
        form: what the seeds are trees of ("json", "toml", "yaml", "lines" of JSON), else "text" or "bytes".
    """

    names: tuple[str, ...]
    read: Callable[[bytes, Path], object]
    seeds: Callable[[], list[str | bytes]]
    form: str

    @property
    def name(self) -> str:
        return self.names[0].removeprefix("weft.")


READERS: dict[str, Reader] = {}


def add(names: str, read: Callable[[bytes, Path], object], form: str, seeds: Callable[[], list[str | bytes]]) -> None:
    full = tuple(f"weft.{name}" for name in names.split())
    one = Reader(names=full, read=read, seeds=seeds, form=form)
    assert one.name not in READERS, one.name
    READERS[one.name] = one


def called(name: str) -> Callable[..., Any]:
    module, _, inner = name.rpartition(".")
    if module.rpartition(".")[2][0].isupper():
        return getattr(resolve_name(f"weft.{module.rpartition('.')[0]}:{module.rpartition('.')[2]}"), inner)
    return resolve_name(f"weft.{module}:{inner}")


def of_text(names: str, form: str, seeds: Callable[[], list[str | bytes]], *beside: Any, **options: Any) -> None:
    """A reader of texts; what is beside and callable is called when it is needed."""
    add(names, lambda raw, _: called(names.split()[0])(decoded(raw), *now(beside), **options), form, seeds)


def of_file(
    names: str, form: str, seeds: Callable[[], list[str | bytes]], *beside: Any, file: str = "given", **options: Any
) -> None:
    """A reader of files."""

    def read(raw: bytes, folder: Path) -> object:
        return called(names.split()[0])(str(written(raw, folder / file)), *now(beside), **options)

    add(names, read, form, seeds)


def of_tree(names: str, seeds: Callable[[], list[str | bytes]], *beside: Any, **options: Any) -> None:
    """A reader of what JSON holds."""
    add(names, lambda raw, _: called(names.split()[0])(parsed(raw), *now(beside), **options), "json", seeds)


def now(values: tuple[Any, ...]) -> list[Any]:
    return [value() if callable(value) else value for value in values]


def written(raw: bytes, path: Path) -> Path:
    path.write_bytes(raw)
    return path


def decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def parsed(raw: bytes) -> Any:
    from weft.documents import parse_json

    return parse_json(decoded(raw), "given")


@cache
def tests_of(path: str) -> ModuleType:
    """A module of tests, for its fixtures."""
    spec = spec_from_file_location(f"fixtures_{Path(path).stem}", TESTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def example(*names: str) -> Callable[[], list[str | bytes]]:
    return lambda: [(EXAMPLES / name).read_bytes() for name in names]


def words(*texts: str) -> Callable[[], list[str | bytes]]:
    return lambda: list(texts)


def from_tests(path: str, *what: str) -> Callable[[], list[str | bytes]]:
    """Texts of a module of tests: expressions over its names."""
    return lambda: [eval(text, {"json": json, **vars(tests_of(path))}) for text in what]


# Networks


@cache
def clos() -> Any:
    from weft.fabric.families import clos as family

    return family.build(8, radix=4, bandwidth_Bps=50e9)


@cache
def rails() -> Any:
    from weft.fabric.dimension import Dimension
    from weft.fabric.families import rail

    return rail.only(8, radix=8, bandwidth_Bps=50e9, scale_up=Dimension(kind="switch", size=4, bandwidth_Bps=450e9))


def fabrics(kind: str) -> Callable[[], list[str | bytes]]:
    def texts() -> list[str | bytes]:
        from weft.interop.formats import FORMATS

        writers = {form.name: form.write for form in FORMATS if form.noun in ("fabric", "wiring") and form.writer}
        return [writers[kind](fabric) for fabric in (clos(), rails())]

    return texts


SHAPES = """{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 9.0, "args": {"External id": 1,
 "Input Dims": [[128, 64], [64, 256]], "Input type": ["float", "float"]}}, {"ph": "X", "cat": "kernel", "name": "k",
 "dur": 5.0, "args": {"External id": 1}}, {"ph": "X", "cat": "cpu_op", "name":
 "aten::_scaled_dot_product_flash_attention", "dur": 1.0, "args": {"External id": 2, "Concrete Inputs": ["True"],
 "Input Dims": [[1, 4, 8, 8], [1, 2, 8, 8], [1, 2, 8, 8]], "Input type": ["c10::Half", "c10::Half"]}}, {"ph": "X",
 "cat": "kernel", "name": "k", "dur": 5.0, "args": {"External id": 2}}]}"""
DIMENSIONS = "ring:8:100GB/s:1us,switch:4:450GB/s:1us:reduce"
SPEED = {"capacity_Bps": 50e9}
SLURM_TEXTS = from_tests("interop/test_slurm_topology.py", "CONF")
SLURM_TREES = from_tests("interop/test_slurm_topology.py", "TREE")
SLURM_QUEUES = from_tests(
    "interop/test_slurm_queue.py", "json.dumps(JOBS[1])", "json.dumps(NODES[0])", "json.dumps(NODES[2])"
)
LLDP = from_tests("interop/test_lldp.py", "json.dumps(site())", "json.dumps(site(False))")
PLANS = words("source_device,source_port,destination_device,destination_port,speed\nleaf1,1,gpu7,ibp1,400G\n")
NCCL = from_tests("interop/test_nccl_topology.py", "h100()")
DISCOVERED = from_tests("interop/test_ibnetdiscover.py", "discovered()")
OPENSM = from_tests(
    "interop/test_opensm.py",
    "discovered([('h0', 1, 's0', 1), ('h1', 1, 's0', 2), ('s0', 3, 's1', 3), ('h2', 1, 's1', 1)], "
    "{('s0', 0): 1, ('s1', 0): 2, ('h0', 1): 3, ('h1', 1): 4, ('h2', 1): 5})",
)
TABLES = """Unicast lids [0x0-0x5] of switch Lid 1 guid 0x0000000000001030 (s0):
0x0001 000 : (Switch portguid 0x0000000000001030: 's0')
0x0003 001 : (Channel Adapter portguid 0x0000000000001001: 'h0')
0x0005 003 : (Channel Adapter portguid 0x0000000000001021: 'h2')
2 valid lids dumped
Unicast lids [0x0-0x5] of switch Lid 2 guid 0x0000000000001040 (s1):
0x0002 000 : (Switch portguid 0x0000000000001040: 's1')
0x0005 001 : (Channel Adapter portguid 0x0000000000001021: 'h2')
"""


FABRIC_TOML = from_tests("fabric/test_fabric_files.py", "SMALL")


def all_fabrics() -> list[str | bytes]:
    texts = (fabrics(kind)() for kind in ("json", "slurm"))
    return [text for group in (*texts, FABRIC_TOML(), SLURM_TEXTS(), LLDP(), NCCL(), DISCOVERED()) for text in group]


def subnet() -> Any:
    from weft.interop.subnet import read_subnet

    return read_subnet(str(OPENSM()[0]))


of_file("interop.fabric_files.read_fabric", "text", all_fabrics, hosts=("gpu*",), **SPEED)
of_text("fabric.files.fabric_from_json", "json", fabrics("json"))
of_text("fabric.files.fabric_from_toml", "toml", FABRIC_TOML)
of_text("interop.ibnetdiscover.read", "text", lambda: DISCOVERED() + OPENSM(), scale_up_Bps=1e11)
HOST_MAP = '# rack 1\n0x3e8 "node0 mlx5_0"\n0x000003e9 node0  # the other\n'
of_text("interop.cabling.read_host_map", "text", lambda: [HOST_MAP])
of_text("interop.subnet.read_subnet", "text", OPENSM)
of_text("interop.lldp.read_wiring", "json", LLDP)
of_text("interop.nccl_topology.read", "text", NCCL)
of_text("interop.ibnetdiscover.read_wiring", "text", lambda: DISCOVERED() + OPENSM())
of_text("interop.cabling.read_names", "text", words("rack7-gpu1, gpu1\nx/eth0 gpu2/nic0  # moved\n"))
of_text("interop.cabling.read_wiring", "text", lambda: fabrics("p2p")() + PLANS())
of_text("interop.slurm_topology.read", "yaml", lambda: SLURM_TREES() + fabrics("slurm")())
of_text("interop.slurm.read_queue", "json", SLURM_QUEUES)
of_text("interop.slurm_topology.expand", "text", words("node[01-04,07],gpu[1-2]x[0-3]", "n[0-99]"), where="n")
of_file(
    "fabric.placement.read_placement",
    "text",
    words("host-1 slots=4\nhost-0 slots=4\n", "host-1:4\nhost-0:4\n", "host-0\n" * 4),
    rails,
    2,
)
of_file(
    "fabric.cost.read_prices fabric.cost.prices_from_toml",
    "toml",
    words("usd_per_switch_port = 100\nusd_per_transceiver = 10.5\nwatts_per_switch_port = 3\n"),
)
of_file("reliability.classes.read_failures reliability.classes.failures_from_toml", "toml", example("failures.toml"))
add(
    "simulation.iteration.simulate.parse_slow",
    lambda raw, _: called("simulation.iteration.simulate.parse_slow")([decoded(raw)], 64, 8, seed=0),
    "text",
    words("rank=3:1.3", "host=2:1.1", "random=0.02"),
)
of_text("reliability.job.parse_policy", "text", words("restart", "shrink,peer,async", "reroute,hot"))

# Routes and traffic


@cache
def routed() -> Any:
    from weft.fabric.paths import routes
    from weft.routing.traffic import job_traffic

    fabric = clos()
    traffic = job_traffic(np.array([0, 1, 5]), np.array([6, 4, 0]), np.full(3, 1e6), names=["ring"])
    return fabric, traffic, routes(fabric, traffic.source, traffic.target, mode="ecmp")


def exported(name: str) -> Callable[[], list[str | bytes]]:
    def texts() -> list[str | bytes]:
        found = called(f"interop.{name}")(*routed())
        return [found]

    return texts


TRAFFIC = "interop/test_traffic_files.py"
FLOWS = from_tests(TRAFFIC, "TABLE")
EVENTS = (
    '{"time_s": 0, "event": "job-arrives", "job": "a", "flows": [{"source": 0, "target": 5, "bytes": 1e9, '
    '"collective": "ring", "rounds": 6, "queue_pair": 2, "rate_Bps": 1e9}], "pause_s": 1.5}',
    '{"time_s": 4, "event": "link-down", "link": ["leaf-0", "spine-0"]}',
    '{"time_s": 5, "event": "switch-up", "switch": "spine-1"}',
    '{"time_s": 6, "event": "traffic", "job": "a", "flows": [{"source": 0, "target": 2, "bytes": 5}]}',
    '{"time_s": 7, "event": "tick"}',
)

SCENARIO = "4 4 2 1e9\n0 2 1000 2 0 1\n2 3 500.5 1 2\n0 1\n1 2\n2 3\n3 0\n"


of_text("interop.routes_json.read", "json", exported("routes_json.write"), clos)
PATHS = """source,target,queue_pair,bytes,path,links
accelerator-0,accelerator-2,0,1GiB,accelerator-0 leaf-0 spine-0 leaf-1 accelerator-2,0 0 0 0
"""


def read_tables(raw: bytes, _: Path) -> object:
    from weft.interop.ibnetdiscover import read
    from weft.routing.traffic import job_traffic

    fabric = read(str(OPENSM()[0]))
    ends = (np.array([fabric.names.index(name)]) for name in ("h0", "h2"))
    return called("interop.opensm.read_tables")(decoded(raw), subnet(), fabric, job_traffic(*ends, np.ones(1)))


def tables() -> list[str | bytes]:
    from weft.fabric.paths import routes
    from weft.interop.ibnetdiscover import read
    from weft.interop.opensm import lid_tables, table_text
    from weft.routing.traffic import job_traffic

    fabric = read(str(OPENSM()[0]))
    ends = [np.array([fabric.names.index(name)]) for name in ("h0", "h2")]
    flow = job_traffic(*ends, np.ones(1))
    return [table_text(lid_tables(subnet(), fabric, flow, routes(fabric, *ends)))]


add("interop.opensm.read_tables", read_tables, "text", tables)
of_text("interop.routes_json.read_paths", "text", words(PATHS), clos)
of_text("interop.nccl.lint_environment", "text", exported("nccl.write_environment"))
of_text(
    "interop.roce.read_probes",
    "text",
    words("src_ip,dst_ip,udp_sport,leaf,spine\n10.0.0.1,10.0.0.9,49152,leaf-0,spine-1\n"),
    clos,
)
of_text("interop.opensm.forwarding_tables", "text", words(TABLES))
of_text("interop.events.read_event", "json", words(*EVENTS), clos, "given")
COUNTERS = "time_s,source,target,load,lost\n3,leaf-0,spine-0,0.5,7\n"
of_text("interop.events.read_counters", "text", words(COUNTERS), clos, where="counters.csv")
of_file("interop.flow_tables.read_csv", "text", FLOWS, lambda: tests_of(TRAFFIC).FABRIC)
of_file("simulation.flows.scenario.read_scenario", "text", words(SCENARIO))
of_text("commands.route.generated_jobs", "text", words("BLOOM:4,GPT_3:2"))

# The controllers' states


def tables_of(path: Path) -> dict[str, list[list[Any]]]:
    """The rows of every table of a file."""
    with closing(sqlite3.connect(path)) as base:
        tables = [name for (name,) in base.execute("select name from sqlite_master where type = 'table'")]
        return {name: [list(row) for row in base.execute(f"select * from {name}")] for name in tables}


def filled(raw: bytes, path: Path) -> None:
    """Make the file of a state with these rows."""
    given = parsed(raw)
    with closing(sqlite3.connect(path)) as base:
        base.execute("pragma synchronous = off")
        base.executescript(resolve_name("weft.routing.store:_SCHEMA"))
        for name, rows in given.items() if isinstance(given, dict) else ():
            for row in rows if isinstance(rows, list) else ():
                fill(base, name, row)
        base.commit()


def state_rows() -> list[str | bytes]:
    """Every table of a controller's state, with its arrays as lists of numbers."""
    from tempfile import TemporaryDirectory

    stored = tests_of("routing/test_store.py")
    with TemporaryDirectory() as folder:
        controller = stored.Controller(stored.FABRIC)
        with closing(stored.Store(folder, controller)) as store:
            stored.tell(controller, store, stored.story()[:5])
        rows = tables_of(Path(folder, stored.FILE))
    for row in rows["parts"]:
        padded = row[1] + b" " * (-len(row[1]) % 8)
        row[1:] = memoryview(padded).cast("q").tolist(), hashlib.sha256(padded).hexdigest()
    return [json.dumps(rows)]


def read_state(raw: bytes, folder: Path) -> object:
    """A state with these rows is loaded, and another event decided on."""
    stored = tests_of("routing/test_store.py")
    controller = stored.Controller(stored.FABRIC)
    filled(raw, folder / stored.FILE)
    with closing(stored.Store(folder, controller)) as store:
        store.load()
    return controller.apply(stored.Event(time_s=1e9, kind="tick", text="tick"))


def fill(base: sqlite3.Connection, table: str, row: Any) -> None:
    cells = (
        [cell if isinstance(cell, str | float | None) else _cell(cell) for cell in row]
        if isinstance(row, list)
        else []
    )
    marks = ", ".join("?" * len(cells))
    try:
        base.execute(f'insert or replace into "{table}" values ({marks})', cells)
    except (sqlite3.Error, OverflowError, UnicodeError, ValueError):
        return


def _cell(cell: Any) -> Any:
    if isinstance(cell, list) and all(isinstance(one, int) and abs(one) < 2**63 for one in cell):
        return b"".join(one.to_bytes(8, "little", signed=True) for one in cell)
    return cell if isinstance(cell, int) and abs(cell) < 2**63 else json.dumps(cell, default=str)


add("routing.store.Store.load", read_state, "json", state_rows)

# Machines and models

CALIBRATIONS = (
    "gemm_efficiency = 0.8\nkernel_s = 4e-6\n",
    '[h100]\nsource = "a"\nprovenance = "calibrated"\ngemm_efficiency = 0.7\n[stack.megatron-core]\nlaunch_s = 5e-6\n'
    '[h200]\nlike = "h100"\nsoftware = "by block"\n',
    'products = [{m = 8, n = 8, k = 8, seconds = 1e-6}]\nmemory = [{name = "default", Bps = 1e12}]\n'
    'collectives = [{kind = "send", scope = "scale-up", Bps = 1e9, ranks = 2}]\n',
)
MEGATRON = (
    "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
    "--max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2 --bf16 "
    "--vocab-size 1000\n"
)
SCRIPTS = from_tests("model/test_megatron_args.py", "MIXTRAL", "DEEPSEEK", "GPT_OSS")
APPLICATIONS = from_tests("interop/test_calculon.py", "json.dumps(APPLICATION)")
EXECUTIONS = from_tests("interop/test_calculon.py", "json.dumps(EXECUTION)")
SYSTEMS = from_tests("interop/test_calculon.py", "json.dumps(SYSTEM)")
CLUSTERS = example("h100-cluster.toml", "custom-accelerator.toml", "a100-half-nic.toml")


def configurations() -> list[str | bytes]:
    records = called("model.catalogue._records")()
    found = {record["config"]["model_type"]: record["config"] for record in records.values()}
    return [json.dumps(found[kind]) for kind in sorted(found)]


def trained() -> list[str | bytes]:
    return [text for text in configurations() if json.loads(text)["model_type"] in ("gpt2", "llama", "qwen2")]


def calibrations(raw: bytes, folder: Path) -> object:
    read, path = called("cluster.calibration.read_calibration"), str(written(raw, folder / "c.toml"))
    return [read(path, name) for name in ("h100", "h200")]


def pasted_cluster(raw: bytes, folder: Path) -> object:
    texts = called("web.pages.Texts")(folder)
    return called("web.pages.cluster_of_text")(texts.find("cluster", texts.keep("cluster", decoded(raw))))


def systems(raw: bytes, folder: Path) -> object:
    return called("cluster.resolve")(f"{written(raw, folder / 'a100_80g.json')}:64")


def applications(raw: bytes, folder: Path) -> object:
    return called("model.calculon.read_application")(written(raw, folder / "application.json"))


def scripts() -> list[str | bytes]:
    return [MEGATRON, (EXAMPLES / "megatron-llama-2-70b.sh").read_bytes()]


def jobs(raw: bytes, folder: Path) -> object:
    """A name, or a script in a file."""
    name = str(written(raw, folder / "run.sh")) if b"--" in raw else decoded(raw)
    return called("model.resolve.resolve_job")(name)


of_file("cluster.files.read_cluster cluster.files.cluster_from_dict", "toml", CLUSTERS)
of_file("cluster.resolve", "toml", CLUSTERS, file="given.toml")
of_text("cluster.catalogue.load", "text", words("h100-64", "a100-8", "gb200-144"))
of_text("cluster.catalogue.accelerator", "text", words("h100", "a100-80gb"))
of_text("cluster.calibration.parse_tables", "toml", words(CALIBRATIONS[1]))
add("cluster.calibration.read_calibration", calibrations, "toml", words(*CALIBRATIONS))
add("cluster.calculon.system_calibration", calibrations, "json", SYSTEMS)
add("cluster.calculon.system_cluster", systems, "json", SYSTEMS)
add("model.calculon.read_application", applications, "json", APPLICATIONS)
of_file("model.huggingface.read_config", "json", configurations, file="config.json")
of_file("model.huggingface.read_config_noted", "json", configurations, file="config.json", stand_in=True)
of_text("model.catalogue.load", "text", words("gpt2", "llama-3.1-8b", "deepseek-v3"))
of_text("model.resolve.config_job", "json", configurations, where="given")
add("web.pages.Texts.find web.pages.cluster_of_text", pasted_cluster, "toml", CLUSTERS)
add("model.resolve.resolve_job", jobs, "text", lambda: ["gpt2", "llama-3.1-8b", *scripts()])
of_text("model.megatron_args.read_megatron_job", "text", scripts, vocab=1000)
of_text("model.megatron_args.read_megatron_args", "text", lambda: scripts() + SCRIPTS(), vocab=1000)
of_text("model.megatron_args.parse_arguments", "text", lambda: scripts() + SCRIPTS())
of_text("model.megatron_args.read_script", "text", lambda: scripts() + SCRIPTS(), where="run.sh")
of_file("runtime.layers.decoder.read_details", "json", trained)
of_text("cluster.files.parse_latency", "text", words("1 us", "5e-6"), where="x")
of_text("fabric.catalogue.parse_kind", "text", words("fat-tree 2:1", "rail-only", "multi-plane-4 1.5:1"))
of_text("units.parse_bytes", "text", words("1 GB", "2GiB", "5e8"))
of_text("units.parse_bandwidth", "text", words("400 Gb/s", "50 GB/s", "1e9"))
of_text("units.parse_flops", "text", words("989 TFLOP/s", "1e15", "2 PFLOP/s"))
of_text("units.parse_seconds", "text", words("5 us", "1e-6", "2y"))
of_text("units.parse_moment", "text", words("2026-11-23T06:30:00Z", "2026-11-23T06:30:00+01:00", "1795415400.5"))
of_text("units.parse_count", "text", words("15T", "1e9", "4M"))
of_text("units.parse_whole", "text", words("4096", "4M", "1e9"))
of_text("units.parse_watts", "text", words("700 W", "0.7 kW", "30"))
of_text("collectives.dimensions.parse_dimensions", "text", words(DIMENSIONS, "fc:4:1GB/s:0"))
of_text("collectives.dimensions.parse_algorithms", "text", words("ring,direct", "halving-doubling,-"))
of_text("commands.bench.parse_sizes", "text", words("4KiB,1MiB", "4KiB:1GiB"))

# Runs, layouts and results


@cache
def plan() -> Any:
    from dataclasses import replace

    import weft

    found = weft.plan("gpt2-124m", "a100-8", top=2)
    return replace(found, pareto=found.pareto[:1])


@cache
def network_plan() -> Any:
    from dataclasses import replace

    import weft

    found = weft.plan("gpt2-124m", "a100-8", top=1, fabric="rail-optimized")
    return replace(found, pareto=())


@cache
def estimate() -> Any:
    import weft

    return weft.estimate("gpt2-124m", "a100-8", "x=2", tokens="10B", failures="5y")


def listed(value: Any) -> tuple[Any, Any]:
    """A name and a table."""
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], dict):
        raise BadInput("is no name and table")
    return value[0], value[1]


def document(make: Callable[[], Any], *inside: Any) -> Callable[[], list[str | bytes]]:
    """A part of a result as JSON."""

    def texts() -> list[str | bytes]:
        found = make().to_dict()
        for key in inside:
            found = found[key]
        return [json.dumps(found)]

    return texts


def deepspeed() -> list[str | bytes]:
    automatic = {"stage": 3, "offload_optimizer": {"device": "nvme"}, "reduce_bucket_size": "auto"}
    tables = (
        {"bf16": {"enabled": True}, "zero_optimization": automatic, "train_batch_size": 64},
        {"train_batch_size": 64, "tensor_parallel": {"autotp_size": 2}, "zero_optimization": {"stage": 1}},
    )
    return [json.dumps(table) for table in tables]


def measured_runs() -> list[str | bytes]:
    lines = (TESTS / "commands" / "published_runs.csv").read_text().splitlines()
    return ["\n".join([lines[0], *some]) + "\n" for some in (lines[1:3], lines[-3:])]


TORCHTITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
global_batch_size = 64
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "1F1B"
[activation_checkpoint]
mode = "selective"
"""

of_file(
    "interop.launch.read_run interop.launch.parse_run",
    "text",
    lambda: [*scripts(), *deepspeed(), TORCHTITAN],
    world=64,
    vocab=1000,
)
of_text("interop.megatron.read", "text", scripts, world=64, vocab=1000)
of_text("interop.deepspeed.read", "json", deepspeed, world=16)
of_text("interop.calculon.read", "json", EXECUTIONS, where="given", world=64)
of_text("interop.torchtitan.read", "toml", words(TORCHTITAN), world=16)
of_text(
    "layout.text.parse_layout",
    "text",
    words("tp=8,pp=16,dp=128,sp,mbs=1", "x=2,order=x/y/context/z/data/pipeline,zero=1"),
)
of_tree("layout.text.layout_from_dict", document(plan, "layouts", 0, "layout"), world=8)
of_tree("model.job.job_from_dict", document(plan, "job"))
of_tree("search.ranking.Plan.from_dict", document(plan))
of_tree("search.network_plan.NetworkPlan.from_dict", document(network_plan))
SITE = """schema = "weft.site/1"
name = "two"
cluster = "a100-16"
fabric = "rail-optimized"
[[hosts]]
name = "host-1"
state = "up"
[[jobs]]
name = "one"
model = "gpt2-124m"
layout = "dp=8"
batch = 8
"""


@cache
def arrangement() -> Any:
    import tempfile

    import weft

    with tempfile.TemporaryDirectory() as folder:
        path = written(SITE.encode(), Path(folder) / "site.toml")
        return weft.arrange(str(path), budget="1s")


FREE = """[[jobs]]
name = "two"
model = "gpt2-124m"
batch = 8
hosts = ["host-0"]
keep_layout = false
fix = "tp=2"
tokens = 1e9
[objective]
kind = "dollars_per_token"
usd_per_accelerator_hour = 2.0
[limits]
spares = 0
"""
of_file("arrangement.site.read_site", "toml", words(SITE, SITE + FREE), file="given.toml")


STUDY = """{"schema": "weft.study/1", "axes": {"model": ["gpt2-124m"], "cluster": "a100", "count": [8, 16], "batch":
[8, 16, 32, 64]}, "skip": [{"count": 16, "batch": [8, 16]}]}"""


def computation_of_verbs() -> Any:
    return called("commands.sweep.computation")


def sweep_of_state(raw: bytes, folder: Path) -> object:
    """Results of a state that notes a damaged study."""
    kept = called("studies.run.StudyState")(folder, {"version": "1"})
    try:
        kept.note("last", raw.decode("utf-8", "replace"))
    finally:
        kept.close()
    with called("commands.sweep.open_sweep")(folder) as found:
        return found.to_dicts()


of_file("studies.study.read_study", "toml", example("study.toml"), computation_of_verbs, file="given.toml")
of_tree("studies.study.study_from_dict", words(STUDY), computation_of_verbs)
add(
    "commands.sweep.open_sweep",
    lambda raw, folder: sweep_of_state(raw, folder),
    "json",
    words(json.dumps({"study": json.loads(STUDY), "files": {}, "limit": 1000})),
)
of_file("arrangement.bundle.read_bundle", "json", document(arrangement), file="given.json")


def whole_arrangement(raw: bytes, folder: Path) -> object:
    path = written(raw, folder / "given.json")
    return called("arrangement.bundle.arrangement_of")(called("arrangement.bundle.read_document")(path), "given")


add("arrangement.bundle.read_document", whole_arrangement, "json", document(arrangement))


def site_of_plan(raw: bytes, folder: Path) -> object:
    """A site whose job is in a plan."""
    written(raw, folder / "given.json")
    table = {
        "schema": "weft.site/1",
        "name": "two",
        "cluster": "a100-16",
        "jobs": [{"name": "a", "plan": "given.json"}],
    }
    return called("arrangement.site.site_of")(table, "given", folder)


add("arrangement.site.site_of", site_of_plan, "json", document(plan))
of_tree("estimation.report.EstimateReport.from_dict", document(estimate))
of_file("commands.read.read", "json", lambda: document(plan)() + document(estimate)())
of_file("commands.read.read_plan", "json", document(plan))
of_file("commands.read.schema_of", "json", document(plan))
of_file("commands.validate.validate verbs.validate.rows_of", "text", measured_runs, file="runs.csv")
of_file("validation.runs.read_runs validation.runs.runs_of_text", "text", measured_runs)

# Traces and simulators

ASTRA = "interop/test_astra.py"
CHAKRA = from_tests(
    "interop/test_chakra.py",
    "trace(node(10, 1, name='start'), node(7, 4, name='a', waits=[10], micros=1500, is_cpu_op=0), "
    "node(8, 7, name='b', waits=[7], ctrl=[10, 7], comm_type=0, comm_size=4096, involved_dim=[1, 0]), "
    "node(9, 6, ctrl=[8], comm_src=1, comm_size=5), node(11, 4, num_ops=1000, tensor_size=64))",
    "trace(node(10, 1, name='start'), node(7, 4, name='a', waits=[10], micros=1500))",
)
TORCH = "interop/test_kineto.py"
KINETO = from_tests(TORCH, "json.dumps(PROFILE)")
TIMELINE = from_tests(
    TORCH,
    "json.dumps({'traceEvents': [launch(1, 0), launch(2, 2), launch(3, 3), kernel('g', 10, 10, correlation=1), "
    "nccl('AllReduce_Sum_bf16', 25, 30, 1000, 1000, correlation=2), kernel('adam', 60, 5, correlation=3)]})",
)


def packed() -> list[str | bytes]:
    import gzip

    texts = [text.encode() for text in (*KINETO(), *TIMELINE()) if isinstance(text, str)]
    return [*texts, *(gzip.compress(text, mtime=0) for text in texts)]


of_text("interop.astra.read_network", "yaml", from_tests(ASTRA, "NETWORK"))
of_text("interop.astra.read_system", "json", from_tests(ASTRA, "system()"))
RATES = {"peak_flops": 1e15, "memory_Bps": 1e12, "sizes": (2, 2)}
of_file("interop.chakra.read_trace interop.chakra.decode_messages", "bytes", CHAKRA, file="a.0.et", **RATES)
of_file("interop.chakra.read_groups", "json", words('{"1": [0, 1], "2": [2, 3]}'))
of_file("interop.torch_records.read_events", "bytes", packed, where="given")
of_file("interop.kineto.read_kineto", "json", lambda: KINETO() + TIMELINE())
of_file("interop.step_trace.read_step_trace", "json", lambda: KINETO() + TIMELINE())
of_file("interop.nccl_log.read_nccl_logs", "text", from_tests("interop/test_nccl_log.py", "lines(gpus=1)"))
NCCL_RUN = "interop/test_nccl_traffic.py"


def read_logs(raw: bytes, folder: Path) -> object:
    return called("interop.nccl_traffic.read_demand")(
        [str(written(raw, folder / "given"))], tests_of(NCCL_RUN).fabric(2)
    )


def recognise(raw: bytes, folder: Path) -> object:
    records = called("interop.flow_tables.read_records")([str(written(raw, folder / "given"))], clos())
    return called("routing.demand.recognised")(records, clos())


RECORDS = "source,target,bytes,start_s,end_s\n" + "".join(
    f"{source},{(source + 1) % 3},{size},{second},{second}.5\n"
    for second in (1, 3, 5, 7)
    for source in range(3)
    for size in ("1e9", "2 MB")
)
add("interop.nccl_traffic.read_demand", read_logs, "text", from_tests(NCCL_RUN, "sample(True)", "sample(False)"))
add("interop.flow_tables.read_records routing.demand.recognised", recognise, "text", words(RECORDS))
of_file("interop.kernel_times.read_kernel_times", "json", words(SHAPES))
of_text("interop.nccl_topology.parse_xml", "text", NCCL, where="given")
of_text("interop.yaml_text.parse_yaml", "yaml", SLURM_TREES, where="given")
of_text("documents.parse_json", "json", words('{"a": [1, 2.5, "b"], "c": {"d": null}}'), "given")
of_text("documents.parse_toml", "toml", words('a = [1, 2.5, "b"]\n[c.d]\ne = 1979-05-27\n'), "given")

# Training


@cache
def checkpoint() -> dict[str, bytes]:
    """The files of a small checkpoint."""
    from tempfile import TemporaryDirectory

    import torch

    from weft.runtime.checkpoints.checkpoint import Piece, save
    from weft.runtime.core.parameters import FlatRange

    place = FlatRange(shape=(4,), rows=((0, 4),), columns=(0, 1), start=0, stop=4)
    with TemporaryDirectory() as folder:
        save(Path(folder, "a"), [Piece(name="w", values=torch.ones(4), placement=place)], STATE)
        return {path.name: path.read_bytes() for path in Path(folder, "a").iterdir()}


ADAM = {"rate": 1e-3, "betas": [0.9, 0.95], "epsilon": 1e-8, "weight_decay": 0.1, "warmup": 1, "steps": 9, "clip": 1.0}
STATE = json.loads(
    '{"step": 3, "seed": 1, "global_batch": 8, "sequence": 16, "model": "a", "data": "b", "precision": {"compute": '
    '"fp32"}, "details": {"activation": "gelu", "norm_epsilon": 1e-5}}'
) | {"adam": ADAM}


def of_checkpoint(names: str, file: str) -> None:
    """A reader of folders with a checkpoint, one of whose files is the input."""

    def read(raw: bytes, folder: Path) -> object:
        for name, data in (checkpoint() | {file: raw}).items():
            written(data, folder / name)
        return called(names.split()[0])(folder)

    add(names, read, "json", lambda: [checkpoint()[file]])


def sealed(raw: bytes, folder: Path) -> object:
    """A state whose digest is right, as an attacker would write it."""
    state = parsed(raw)
    try:
        digest = called("runtime.checkpoints.checkpoint._digest")(state)
    except (TypeError, ValueError, AttributeError):
        raise BadInput("has no digest") from None
    whole = json.loads(checkpoint()["weft.json"]) | {"state": state, "digest": digest}
    written(json.dumps(whole).encode(), folder / "weft.json")
    table = called("runtime.checkpoints.checkpoint.read_state")(folder)
    return called("runtime.run.session.RunState.read")(table, "given").adam


def metrics(raw: bytes, folder: Path) -> None:
    with called("runtime.run.folder.metrics_file")(written(raw, folder / "metrics.jsonl"), 2):
        pass


def measured() -> list[str | bytes]:
    from weft.layout.measured import Measured, Product, Rank, Sample, measured_to_json
    from weft.layout.spec import Layout

    share = {"memory_bytes": 1e10, "copy_Bps": 1e10, "best_copy_Bps": 2e10, "host_Bps": 1e10, "launch_s": 1e-6}
    rank = Rank(name="cpu", multiprocessors=1, **share)
    sample = Sample(axis="x", kind="all-reduce", ranks=2, bytes=4096, seconds=1e-4)
    product = Product(precision="fp32", m=64, n=64, k=64, seconds=1e-5)
    parts = {"samples": (sample,), "products": (product,)}
    whole = Measured(layout=Layout(x=2), device="cpu", repeats=5, rank=rank, **parts)
    return [measured_to_json(whole)]


of_checkpoint("runtime.checkpoints.checkpoint.read_state", "weft.json")
of_checkpoint("runtime.checkpoints.checkpoint.read_index", "tensors.json")
add("runtime.run.session.RunState.read", sealed, "json", words(json.dumps(STATE)))
add("runtime.run.folder.metrics_file", metrics, "lines", words('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2}\n'))
of_text("layout.measured.measured_from_json", "json", measured)
of_file("runtime.run.data.byte_corpus", "text", words("some text"))


# Weights of the hub and shards of tokens --------------------------------------------------------


def hub_file() -> dict[str, bytes]:
    """A folder of the hub with a model of one block, in one file."""
    import torch
    from safetensors.torch import save

    from weft.model import read_config
    from weft.runtime.checkpoints.hub import parts

    config = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    config |= {"intermediate_size": 8, "vocab_size": 8, "tie_word_embeddings": True}
    tensors = {
        f"model.{one}": torch.zeros(8, *(() if "norm" in name else (8,)))
        for name, part in parts(read_config(config), "llama").items()
        for one in part.names
    }
    index = json.dumps({"weight_map": dict.fromkeys(tensors, "model.safetensors")})
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": save(tensors),
        "model.safetensors.index.json": index.encode(),
    }


def of_hub(names: str, form: str, file: str, *others: str) -> None:
    """A reader of such folders, one of whose files is the input."""

    def read(raw: bytes, folder: Path) -> object:
        from weft.model import read_config

        for name in (*others, file):
            written(raw if name == file else hub_file()[name], folder / name)
        whole = called("runtime.checkpoints.hub.HubWeights")(folder, read_config(folder))
        return whole("embedding.weight", (8, 8), (1, 2), (3, 4))

    add(names, read, form, lambda: [hub_file()[file]])


def shards() -> list[str | bytes]:
    from io import BytesIO

    file = BytesIO()
    np.save(file, np.arange(9, dtype=np.uint16))
    return [file.getvalue()]


of_hub(
    "runtime.checkpoints.hub.HubWeights", "json", "model.safetensors.index.json", "config.json", "model.safetensors"
)
of_file("runtime.run.data.shard_corpus", "bytes", shards, file="given.npy")
