"""Logs of NCCL_DEBUG=INFO: lines in the forms that NCCL and RCCL print, as in public reports of slow runs."""

from pathlib import Path

import pytest

from weft.errors import BadInput
from weft.interop.nccl_log import faults, is_nccl_log, read_nccl_logs


def lines(
    hosts: int = 2,
    gpus: int = 8,
    nics: dict[int, list[int]] | None = None,
    via: str = "NET/IB/{}/GDRDMA",
    local: str = "P2P/CUMEM",
    before: str = "",
) -> str:
    """A ring over all hosts on as many channels as NICs, as NCCL 2.2x logs it."""
    result = [f"{before}NCCL version 2.21.5+cuda12.4"]
    for host in range(hosts):
        devices = (nics or {}).get(host, list(range(gpus)))
        names = " ".join(f"[{k}]mlx5_{k}:1/IB" for k in devices)
        for gpu in range(gpus):
            rank, world = host * gpus + gpu, hosts * gpus
            head = f"{before}node-{host}:{100 + gpu}:{200 + gpu} [{gpu}] NCCL INFO"
            result.append(f"{head} NET/IB : Using {names} [RO]; OOB eth0:10.0.0.{host}<0>")
            result.append(
                f"{head} ncclCommInitRank comm 0x1 rank {rank} nranks {world} cudaDev {gpu} busId 1 - Init START"
            )
            for channel, device in enumerate(devices):
                name = via.format(device)
                after, ahead = (rank + 1) % world, (rank - 1) % world
                if gpu == gpus - 1:
                    result.append(f"{head} Channel {channel:02}/0 : {rank}[{gpu}] -> {after}[0] [send] via {name}")
                else:
                    result.append(
                        f"{head} Channel {channel:02}/0 : {rank}[{gpu}] -> {after}[{gpu + 1}] via {local}/read"
                    )
                if gpu == 0:
                    result.append(f"{head} Channel {channel:02}/0 : {ahead}[7] -> {rank}[0] [receive] via {name}")
    return "\n".join(result)


def read(tmp_path: Path, text: str):
    (tmp_path / "nccl.log").write_text(text)
    assert is_nccl_log(tmp_path / "nccl.log")
    return read_nccl_logs(str(tmp_path / "nccl.log"))


@pytest.mark.parametrize("before", ["", "[1,0]<stdout>:", "[155] "])
def test_a_good_network_has_no_faults(tmp_path, before):
    log = read(tmp_path, lines(before=before))
    assert (log.ranks, log.network) == (16, "IB")
    assert log.hosts == {"node-0": 8, "node-1": 8}
    assert log.devices["node-1"] == {f"mlx5_{k}" for k in range(8)}
    assert (log.direct, log.copied, log.local) == (16, 0, {"P2P": 14 * 8})
    assert list(faults(log)) == []


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"via": "NET/Socket/{}"}, "over TCP sockets"),
        ({"via": "NET/IB/{}"}, "16 of 16 connections between hosts go through host memory"),
        ({"via": "NET/IB/{} comm 0x7f1 nRanks 16"}, "16 of 16 connections between hosts go through host memory"),
        ({"via": "NET/AWS Libfabric/{}"}, "without GPUDirect RDMA"),
        ({"nics": {1: [0, 1, 2, 4, 5, 6, 7]}}, "host node-1 sends over 7 NICs for 8 GPUs"),
        ({"nics": {0: [3], 1: [3]}}, r"host node-0 sends over 1 NIC for 8 GPUs (mlx5_3)"),
        ({"local": "SHM/direct"}, "through shared memory, not over NVLink"),
    ],
)
def test_each_fault_is_named_alone(tmp_path, changed, why):
    (fault,) = faults(read(tmp_path, lines(**changed)))
    assert why in fault


def test_settings_and_warnings(tmp_path):
    head = "node-0:1:2 [0]"
    text = lines() + (
        f"\n{head} NCCL INFO NCCL_P2P_DISABLE set by environment to 1."
        f"\n{head} NCCL INFO NCCL_IB_HCA set by environment to mlx5"
        f"\n{head} misc/ibvwrap.cc:63 NCCL WARN Link is down\n"
    )
    log = read(tmp_path, text)
    assert log.settings == {"NCCL_IB_HCA": "mlx5", "NCCL_P2P_DISABLE": "1"}
    assert list(faults(log)) == [
        "NCCL_P2P_DISABLE=1 is set: GPUs of a host do not exchange over NVLink",
        "NCCL warns: node-0: Link is down",
    ]


def test_the_largest_communicator_counts_and_other_lines_do_not(tmp_path):
    text = (
        "step 1 loss 3.2\n"
        + lines()
        + "\nnode-0:1:2 [0] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 0\n"
        + lines()[:997]
    )
    assert read(tmp_path, text).ranks == 16


def test_ranks_of_several_communicators_are_not_taken_for_gpus(tmp_path):
    """Tensor groups of a host come first and number their ranks from 0."""
    inside = [
        f"node-{host}:{100 + gpu}:7 [{gpu}] NCCL INFO {words}"
        for host in (0, 1)
        for gpu in range(8)
        for words in (
            f"ncclCommInitRank comm 0x9 rank {gpu} nranks 8 cudaDev {gpu}",
            f"Channel 00/0 : {gpu}[{gpu}] -> {(gpu + 1) % 8}[{(gpu + 1) % 8}] via P2P/CUMEM",
        )
    ]
    log = read(tmp_path, "\n".join([*inside, lines(nics={0: [0, 1, 2], 1: [0, 1, 2]})]))
    assert (log.ranks, log.hosts) == (16, {"node-0": 8, "node-1": 8})
    assert list(faults(log)) == []


def test_a_log_without_connections_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no lines of NCCL's connections"):
        read(tmp_path, "node-0:1:2 [0] NCCL INFO cudaDriverVersion 12040\n")
    for start in ('{"traceEvents": [', "[", "[\n", " [\n "):
        (tmp_path / "trace.json").write_text(start + '{"name": "NCCL INFO"}\n')
        assert not is_nccl_log(tmp_path / "trace.json")
    (tmp_path / "late.log").write_text("loading\n" * 20_000 + "n:1:2 [0] NCCL INFO rank 0 nranks 2\n")
    assert is_nccl_log(tmp_path / "late.log")
    assert not is_nccl_log(tmp_path / "missing.log")


def test_broken_and_endless_lines_are_passed_over(tmp_path):
    head = "node-0:100:200 [0] NCCL INFO"
    broken = (
        f"{head} Channel 00/0 : 7[7] -> 8[0] [send] via NET",
        f"{head} {'NCCL_' * 10**6}",
        "a" * 10**6 + " NCCL ",
    )
    log = read(tmp_path, "\n".join([lines(), *broken]))
    assert (log.ranks, log.network, log.copied) == (16, "IB", 1)
