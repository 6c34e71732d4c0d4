"""A host program that runs the waits of a header for cuSync, and checks that no tile went on too early."""

from __future__ import annotations

from tileprof.policy.emit.express import Expressed

_KERNEL = """\
// Runs a cuSync policy without the arithmetic: every tile waits, checks that what it waited for has happened, and
// posts.
//
//   nvcc -std=c++17 -arch=sm_90 -I $(python -m tileprof.runtime.include_path) example.cu -o example && ./example
//
// or with cuSync: -I CUSYNC/src/include, and CUSYNC/src/cusync.cu beside example.cu.

#include <cstdio>

#include "policy.h"

using namespace tileprof_policy;

// done[s] counts the tiles that have written their result and will post semaphore s; it outlives the rounds.
struct Round {
  const uint32_t* before;  // done of the producer
  uint32_t* done;
  uint32_t* early;
  uint32_t number;
};

// Waits k = 0, 1, ... of a tile are numbered above its z, as wait_as_NAME does.
template <typename Waits>
__device__ void look(Waits waits, dim3 tile, dim3 grid, uint32_t most, Round round) {
  for (uint32_t k = 0; k < most; ++k, tile.z += grid.z) {
    if (!waits.isSync(tile, grid)) continue;
    const uint32_t seen = *static_cast<const volatile uint32_t*>(&round.before[waits.tileIndex(tile, grid)]);
    if (seen < round.number * waits.waitValue(tile, grid)) atomicAdd(round.early, 1u);
  }
}

static void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\\n", cudaGetErrorString(error));
  std::exit(1);
}
"""


def example(expressed: Expressed, names: list[str], most: list[int]) -> str:
    """Return the text of the program; ``names`` are the identifiers of the stages, ``most`` the waits of a tile of
    each.
    """
    stages = expressed.policy.stages
    count = len(stages)
    largest = max(stage.tiles for stage in stages)
    starting = {p for p, _ in expressed.events}
    kernels = "".join(_kernel(expressed, n, name, most[n]) for n, name in enumerate(names))
    launches = "".join(_launch(expressed, n, name, event=n in starting) for n, name in enumerate(names))
    tiles = sum(stage.tiles for stage in stages)
    return f"""\
{_KERNEL}
{kernels}int main() {{
  constexpr int stages = {count};
  constexpr uint32_t rounds = 3;
  Stages made;
  cudaStream_t streams[stages];
  cudaEvent_t ends[stages];
  uint32_t* done[stages];
  uint32_t* early;
  check(cudaMalloc(&early, sizeof(uint32_t)));
  check(cudaMemset(early, 0, sizeof(uint32_t)));
  for (int n = 0; n < stages; ++n) {{
    check(cudaStreamCreateWithFlags(&streams[n], cudaStreamNonBlocking));
    check(cudaEventCreateWithFlags(&ends[n], cudaEventDisableTiming));
    check(cudaMalloc(&done[n], {largest} * sizeof(uint32_t)));
    check(cudaMemset(done[n], 0, {largest} * sizeof(uint32_t)));
  }}
  for (uint32_t round = 1; round <= rounds; ++round) {{
{launches}    check(cudaDeviceSynchronize());
    next_round(made);
  }}
#ifdef TILEPROF_SYNC
  check_waits(made);
#endif
  uint32_t found = 0;
  check(cudaMemcpy(&found, early, sizeof found, cudaMemcpyDeviceToHost));
  std::printf("%u rounds of {tiles} tiles, %u went on too early\\n", rounds, found);
  return found == 0 ? 0 : 1;
}}
"""


def _kernel(expressed: Expressed, number: int, name: str, most: int) -> str:
    into, out = expressed.edge_into(number), expressed.edge_from(number)
    wait = f"""\
  wait_as_{name}(stage, tile);
  if (threadIdx.x == 0) look(waits, tile, grid, {most}u, round);
"""
    work = "  if (threadIdx.x == 0) atomicAdd(&round.done[posts.tileIndex(tile, grid)], 1u);\n" if out else ""
    post = "  stage.post(tile);\n" if out else ""
    parameters = [f"{name}Stage stage"]
    parameters += [f"{name}Waits waits"] if into else []
    parameters += [f"{name}Posts posts"] if out else []
    unused = "" if into or out else "  (void)tile, (void)grid, (void)round;\n"
    return f"""\
__global__ void run_{name}({", ".join(parameters)}, dim3 grid, Round round) {{
  __shared__ uint32_t slot[3];
  dim3 tile = stage.tile(reinterpret_cast<dim3*>(slot));
{wait if into else ""}  // The tile's work belongs here.
{work}{post}{unused}}}

"""


def _launch(expressed: Expressed, number: int, name: str, *, event: bool) -> str:
    """Return one launch; a stage whose whole end others await records an event."""
    into, out = expressed.edge_into(number), expressed.edge_from(number)
    events = "".join(f", ends[{p}]" for p, c in expressed.events if c == number)
    grid = f"dim3({', '.join(map(str, expressed.policy.stages[number].grid))})"
    before = f"done[{into.producer}]" if into else "nullptr"
    record_end = f"    check(cudaEventRecord(ends[{number}], streams[{number}]));\n" if event else ""
    arguments = [f"made.stage_{number}"]
    arguments += [f"made.waits_{number}"] if into else []
    arguments += [f"made.posts_{number}"] if out else []
    return (
        f"    before_{name}(made, streams[{number}]{events});\n"
        f"    run_{name}<<<{grid}, 32, 0, streams[{number}]>>>({', '.join(arguments)}, {grid},\n"
        f"        Round{{{before}, done[{number}], early, round}});\n"
        f"    check(cudaGetLastError());\n{record_end}"
    )
