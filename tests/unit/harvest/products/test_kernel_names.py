"""Names of cuBLAS's kernels, as an H200 launched them (driver 580, CUDA 13.0), and what they encode."""

import pytest

from tileprof.harvest.products.kernel_names import parse

NAMES = {
    "nvjet_sm90_tst_64x24_64x16_2x4_h_bz_bias_TNT": ("nvjet", 24, 64, 64, 16, (4, 2), False),
    "nvjet_sm90_tst_128x32_64x10_2x1_v_bz_splitK_TNT": ("nvjet", 32, 128, 64, 10, (1, 2), True),
    "nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_NTT": ("nvjet", 128, 256, 64, 4, (2, 1), False),
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel"
    "__5x_cublas": ("xmma", 256, 64, 8, 3, (1, 1), False),
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_execute_split_k_kernel__5x_cublas":
        ("xmma", 32, 32, 8, 3, (1, 1), True),
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64x32_warpgroupsize1x1x1_execute_segment_k_off_kernel"
    "__5x_cublas": ("xmma", 64, 128, 32, 0, (1, 1), False),
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_32x6_nn_align4>(Params)":
        ("cutlass", 64, 128, 32, 6, (1, 1), False),
    "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x256_tn_align1>(Params)":
        ("cutlass", 256, 128, 0, 0, (1, 1), False),
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)":
        ("cutlass", 32, 128, 8, 5, (1, 1), False),
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(x)": ("splitKreduce", 0, 0, 0, 0, (1, 1), False),
    "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false>(x)": ("gemmSN", 0, 0, 0, 0, (1, 1), False),
    "memset": ("memset", 0, 0, 0, 0, (1, 1), False),
    "void at::native::vectorized_elementwise_kernel<4>(x)": ("other", 0, 0, 0, 0, (1, 1), False),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_says_tile_pipeline_cluster_and_slices(name):
    parts = parse(name)
    assert (parts.family, parts.m, parts.n, parts.k, parts.stages, parts.cluster, parts.split) == NAMES[name]
