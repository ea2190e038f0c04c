"""Runs in the engine's environment: vLLM's own graph managers, asked for every (B, k), before and after the plugin holds them.

Nothing is captured, for that needs a GPU: the managers are told that it was, and then dispatch as they do after a capture.
Takes launch tables with their longest length as JSON and prints, for each: the cells that `mismatched_cells` finds, those that are
left when the plugin holds the managers, what it reports, and the cells that would be found with the capture sizes that TableTune names.
"""

import json
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

import vllm.v1.worker.gpu.cudagraph_utils as graphs_of_vllm
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import SpeculatorCudaGraphManager

from tabletune.graphs import capture_sizes
from tabletune_engine.graph_report import GraphReport
from tabletune_engine.graphs import hold_graphs, is_full, mismatched_cells

MAX_NUM_SEQS, LARGEST_GRAPH = 256, 512


def default_sizes(table: list[list[int]], longest: int) -> list[int]:
    """vLLM's default sizes (VllmConfig._set_cudagraph_sizes), which it works out only for a GPU."""
    lookup = build_dynamic_sd_schedule_lookup(table, MAX_NUM_SEQS, longest)
    widest = {k: B for B, k in enumerate(lookup) if B}
    grid = [1, 2, 4, *range(8, 256, 8), *range(256, LARGEST_GRAPH + 1, 16)]
    tiers = {n * (k + 1) for k, B in widest.items() for n in {*(n for n in grid if n <= B), B}}
    return sorted({*grid, *(size for size in tiers if size <= LARGEST_GRAPH)})


def make_worker(table: list[list[int]], longest: int, sizes: list[int]) -> Any:
    speculation = SimpleNamespace(num_speculative_tokens_per_batch_size=table, uses_dynamic_speculative_decoding=lambda: True)
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=MAX_NUM_SEQS),
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=max(sizes)),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, data_parallel_size=1),
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
        speculative_config=speculation,
        num_speculative_tokens=longest,
        use_v2_model_runner=True,
    )
    kinds = (graphs_of_vllm.ModelCudaGraphManager, SpeculatorCudaGraphManager)
    target, drafter = (kind(config, "cpu", CUDAGraphMode.FULL_AND_PIECEWISE, longest + 1) for kind in kinds)
    target._graphs_captured = drafter._graphs_captured = True
    runner = SimpleNamespace(cudagraph_manager=target, speculator=SimpleNamespace(prefill_cudagraph_manager=drafter))
    return SimpleNamespace(vllm_config=config, model_runner=runner, rank=0)


def ask(worker: Any, table: list[list[int]]) -> list[tuple[int, int]]:
    runner, lengths = worker.model_runner, {k for _, _, k in table}
    drafter = runner.speculator.prefill_cudagraph_manager
    return mismatched_cells(runner.cudagraph_manager, drafter, lengths, beside=1, most=MAX_NUM_SEQS)


def without_full_graph(worker: Any, table: list[list[int]], largest: int) -> list[tuple[int, int]]:
    """The cells, as far as the largest graph reaches, in which the target finds no full graph."""
    target = worker.model_runner.cudagraph_manager
    cells = [(B, k) for B in range(1, MAX_NUM_SEQS + 1) for k in {k for _, _, k in table} if B * (k + 1) <= largest]
    return [(B, k) for B, k in cells if not is_full(target.dispatch(B, B * (k + 1), k + 1, num_active_loras=0, max_query_len=k + 1))]


def look(table: list[list[int]], longest: int) -> dict[str, Any]:
    worker = make_worker(table, longest, default_sizes(table, longest))
    found = ask(worker, table)
    sizes = list(capture_sizes(sorted({k for _, _, k in table}), MAX_NUM_SEQS, LARGEST_GRAPH))
    named = make_worker(table, longest, sizes)
    with tempfile.TemporaryDirectory() as folder:
        report = GraphReport(f"{folder}/engine.sock")
        hold_graphs(worker, report)
        fresh = report.read(1)
        left = ask(worker, table)
        return {
            "found": found,
            "left": left,
            "reported": fresh.to_fact(),
            "cures": [fresh.cures, report.read(1).cures],
            "withNamedSizes": ask(named, table),
            "withoutFullGraph": without_full_graph(named, table, max(sizes)),
        }


def main() -> None:
    one = SimpleNamespace(is_first_rank=True, is_last_rank=True)
    graphs_of_vllm.get_pp_group = lambda: one  # there is no process group without a worker
    graphs_of_vllm.current_platform = SimpleNamespace(get_global_graph_pool=lambda: None)  # a CPU has none
    print(json.dumps([look(table, longest) for table, longest in json.loads(sys.argv[1])]))


if __name__ == "__main__":
    main()
