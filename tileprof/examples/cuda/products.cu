// Two products in fp16 with a ReLU each, synchronised tile by tile with the policy of products.dep: [TOKENS, IN] by
// [IN, HIDDEN] by [HIDDEN, OUT].
//
//     make run        or: build/products/program [replays]
//
// Other sizes: -DTOKENS=512 …, with the grids of the policy.
#include "chain.cuh"

#ifndef TOKENS
#define TOKENS 1024
#define IN 1024
#define HIDDEN 1024
#define OUT 1024
#endif
static_assert(TOKENS % kTile == 0 && HIDDEN % kTile == 0 && OUT % kTile == 0 && IN % kDepth == 0, "every tile is full");

struct WaitForRow {
    template <typename Stage>
    __device__ void operator()(Stage& stage, dim3 tile) const {
        tileprof_policy::wait_as_Down(stage, tile);
    }
};

int main(int count, char** words) {
    using namespace tileprof_policy;
    constexpr size_t kTokens = TOKENS, kIn = IN, kHidden = HIDDEN, kOut = OUT;
    half *between = random_halves(kTokens * kHidden, 1.0f, 2), *out = random_halves(kTokens * kOut, 1.0f, 3);
    const Work<Rows, Rows> work = {
        {Rows{random_halves(kTokens * kIn, 1.0f, 1), IN}, random_halves(kIn * kHidden, 0.05f, 4), between, HIDDEN, IN,
         dim3(HIDDEN / kTile, TOKENS / kTile)},
        {Rows{between, HIDDEN}, random_halves(kHidden * kOut, 0.05f, 5), out, OUT, HIDDEN,
         dim3(OUT / kTile, TOKENS / kTile)},
        {between, out, kTokens * kHidden, kTokens * kOut}};
    return compare<UpOrder, UpPosts, DownOrder, DownWaits>(work, WaitForRow(), count > 1 ? std::atoi(words[1]) : 100);
}
