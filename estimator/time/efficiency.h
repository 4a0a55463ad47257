// What kernels and links reach of their datasheet peaks where nothing has been measured: every
// constant of the time model with its value and its source. Curves of GpuSpec replace them.
#pragma once

#include <array>
#include <string_view>

#include "estimator/plan/cluster_spec.h"

namespace shardplan {

struct EfficiencyConstant {
  double value = 0;
  std::string_view source;
};

inline constexpr EfficiencyConstant kGemmShare = {
    .value = 0.72,
    .source =
        "of the dense peak, inside full waves of tiles, where a GPU file says no sustained rate: "
        "mean of the 81 products with sides of 4096 to 16384 that calibrate --time measured on "
        "H200 behind other products at the limit of power (0.70 to 0.75)"};
inline constexpr EfficiencyConstant kFp8GemmShare = {
    .value = 0.66,
    .source = "of the dense fp8 peak: cuBLASLt 1200-1300 of 1979 TFLOP/s on H100 and H200"};
inline constexpr EfficiencyConstant kAttentionLoad = {
    .value = 0.82,
    .source =
        "of the curves below, which are of attention alone: behind products at the limit of power "
        "calibrate --time measured 510 to 556 TFLOP/s forward and 400 to 475 backward on H200, "
        "4096 to 32768 tokens (0.81 to 0.86 and 0.79 to 0.84)"};
inline constexpr EfficiencyConstant kWeightGradientShare = {
    .value = 0.92,
    .source =
        "weight gradients added to an fp32 accumulator over other products: 0.455 against 0.49 "
        "on B200 (SimuMax configs/system/b200_bf16_ceperm.json); 0.4 ms of 4.8 on a Llama-3-8B "
        "layer of 8192 tokens on H200"};
inline constexpr EfficiencyConstant kBlockwiseShare = {
    .value = 0.83,
    .source =
        "cuBLASLt's fp8 products with a scale for 128 values over those with one for a tensor, on "
        "H100: 0.80 to 0.91 in eight layers (data/measured/fp8_products_h100.csv)"};
inline constexpr EfficiencyConstant kGemmPrologue = {
    .value = 192,
    .source =
        "pipeline fill and epilogue of a tile as columns of k: about 2 us at 5 TFLOP/s of "
        "one SM and a 128 x 256 tile"};
inline constexpr EfficiencyConstant kSmallHeadShare = {
    .value = 0.7,
    .source =
        "attention with a head dimension of 64 or less over 128: FlashAttention-3, arXiv "
        "2407.08608 figure 5"};
inline constexpr EfficiencyConstant kOwnBackwardShare = {
    .value = 0.9,
    .source =
        "backward attention of our own kernels on gathered keys over the rate measured for as many "
        "keys: 0.85 to 0.97 in 11 steps of cp 2 to 8, 8,192 to 131,072 tokens (H200, "
        "data/measured/training_h200.txt)"};
inline constexpr EfficiencyConstant kFlash2ForwardShare = {
    .value = 0.5,
    .source =
        "FlashAttention 2 over cuDNN, causal, 8192 tokens, 32 heads of 128 on H200: 305 of 623 "
        "TFLOP/s (flash_fwd_kernel in data/measured/torch_kernels_h200.json)"};
inline constexpr EfficiencyConstant kFlash2BackwardShare = {
    .value = 0.5, .source = "the same backward: 255 of 490-530"};
inline constexpr EfficiencyConstant kFlexForwardShare = {
    .value = 0.49,
    .source =
        "flex_attention with a causal mask over cuDNN, 4096 tokens, latent attention of 16 and 128 "
        "heads on H100: 298 and 292 of 603 TFLOP/s (triton_tem_fused_flex_attention of PyTorch "
        "2.11, profiles of torchtitan's DeepSeek-V3)"};
inline constexpr EfficiencyConstant kFlexBackwardShare = {
    .value = 0.28, .source = "the same backward: 141 and 136 of 497"};
inline constexpr EfficiencyConstant kCopyShare = {
    .value = 0.85,
    .source =
        "fused memory-bound kernels over the datasheet bandwidth: copy 4.3 of 4.8 TB/s (0.90) on "
        "H200, cuDNN RMSNorm 3.7-3.8 TB/s (0.78)"};
inline constexpr EfficiencyConstant kFusedShare = {
    .value = 0.93,
    .source =
        "the same over a copy measured on the GPU: 0.85-0.99, data/measured/kernels_h200.txt"};
inline constexpr EfficiencyConstant kStreamedShare = {
    .value = 0.73,
    .source =
        "PyTorch's vectorized kernels over a copy on H200: silu and products 2.7-3.0, additions "
        "3.4, norms 2.7-3.1, casts to bf16 4.1, fused AdamW 3.0 of 4.25 TB/s "
        "(data/measured/torch_kernels_h200.json)"};
inline constexpr EfficiencyConstant kConvertedShare = {
    .value = 0.57,
    .source =
        "its kernels that broadcast or change the type: bf16 to fp32 2.1, fp32 += bf16 2.7, "
        "differences and quotients of rows 2.4-2.7, FSDP's chunk_cat 2.1 of 4.25 TB/s (the same)"};
inline constexpr EfficiencyConstant kRearrangedShare = {
    .value = 0.33,
    .source =
        "its kernels on views that are not contiguous: rotary embedding's products 1.4-1.5, cats "
        "0.9, casts 1.2, copies 1.7 of 4.25 TB/s (the same)"};
inline constexpr EfficiencyConstant kMultiTensorShare = {
    .value = 0.80,
    .source =
        "Transformer Engine's kernels over lists of tensors over a copy on H200: FusedAdam 3.34, "
        "norm 3.42, scaling 3.63 of 4.23 TB/s (data/measured/megatron_kernels_h200.txt)"};
inline constexpr EfficiencyConstant kEngineRotaryShare = {
    .value = 0.41,
    .source =
        "Transformer Engine's fused_rope kernels over a copy: 1.80 forward and 1.62 backward of "
        "4.23 TB/s, 4096 and 8192 tokens, heads of 128 (the same)"};
inline constexpr EfficiencyConstant kEmbeddingSumShare = {
    .value = 0.17,
    .source =
        "PyTorch's compute_grad_weight and sum_and_scatter over a copy: 0.74 of 4.23 TB/s on "
        "random tokens, 0.66 with the sort before (the same)"};
inline constexpr EfficiencyConstant kIndexAddShare = {
    .value = 0.165,
    .source =
        "PyTorch's index_add of bf16 rows over a copy: 0.70 of 4.23 TB/s, 2 and 8 experts a token "
        "(the same)"};
inline constexpr EfficiencyConstant kChunkCopyShare = {
    .value = 0.53,
    .source =
        "PyTorch's copy that swaps the first two of three dimensions, over a copy: 0.51 to 0.54 on "
        "H100, seven sizes (data/measured/mixture_kernels_h100.json)"};
inline constexpr EfficiencyConstant kExpertLook = {
    .value = 24e-9,
    .source =
        "seconds of one multiprocessor for one expert, one token and 1024 columns, where fused "
        "permutation looks at all experts (Transformer Engine before 2.6): 22 to 27 on H100, five "
        "sizes with 128 and 256 experts both ways; 33 and 37 of 1024 tokens, which do not fill it "
        "(the same file)"};
inline constexpr EfficiencyConstant kCapacityStart = {
    .value = 40e-6,
    .source =
        "seconds in which PyTorch's kernels choose the tokens of experts with a capacity, however "
        "few: the same file, six sizes"};
inline constexpr EfficiencyConstant kCapacityScore = {
    .value = 57e-12, .source = "and for each token and expert: the same"};
inline constexpr EfficiencyConstant kLightCycle = {
    .value = 0.58,
    .source =
        "cycle, over that of products alone, for which FlashAttention 2 makes room among eager "
        "kernels: products of five steps of nanotron, 40 to 68 % of the time, run at 748 to 787 "
        "TFLOP/s on H200, where 650 to 680 are measured among products. Of nanotron alone: with it "
        "two runs of torchtitan with FlashAttention 2 on H200 would be 10 and 12 % too fast, not 2 "
        "and 3, and four of GPT-3 175B and Grok-1 in bf16 on H100 4 to 7, not 2 to 3 "
        "(data/published/torchtitan.jsonl, known_runs.jsonl)"};
inline constexpr EfficiencyConstant kTopClock = {.value = 1.19,
                                                 .source = "the same: no product ran faster"};
inline constexpr EfficiencyConstant kNvlinkShare = {
    .value = 0.82,
    .source = "NCCL without NVLS: 370 of 450 GB/s on an NVSwitch node (nccl-tests issue 212)"};
inline constexpr EfficiencyConstant kNvlink5Share = {
    .value = 0.67,
    .source =
        "all-gather and reduce-scatter of 900 GB/s among 8 B200 (SimuMax "
        "configs/system/b200_bf16_ceperm.json, 0.6735 and 0.6731)"};
inline constexpr EfficiencyConstant kNvlink5ExchangeShare = {
    .value = 0.6, .source = "all-to-all: the same, 0.5968"};
inline constexpr EfficiencyConstant kDeepEpStart = {
    .value = 117e-6,
    .source =
        "seconds of a call, mean of dispatch and combine: v1.2.1 with 20 multiprocessors on 4 H200 "
        "(data/measured/dispatch_h200.json), three sizes taken apart"};
inline constexpr EfficiencyConstant kDeepEpRow = {
    .value = 14.3e-9, .source = "seconds for each row received: the same"};
inline constexpr EfficiencyConstant kDeepEpLink = {
    .value = 1,
    .source =
        "of NVLink's rate, by all bytes received: the same, 451 of 450 GB/s; with start and rows "
        "as "
        "there 829 of 900 on 8 B200 (branch hybrid-ep at 94a9f8f, docs/README_Hybrid-EP.md)"};
inline constexpr EfficiencyConstant kHybridEpStart = {
    .value = 170e-6,
    .source =
        "seconds of a call: its calls less its kernels, GB200, 8 to 36 ranks, bf16, 16 "
        "multiprocessors (docs/README_Hybrid-EP.md, as above): 150 to 215"};
inline constexpr EfficiencyConstant kHybridEpLink = {
    .value = 0.69,
    .source = "of NVLink's rate, by all bytes received: its kernels, the same, 576 to 715 of 900"};
inline constexpr EfficiencyConstant kPcieShare = {
    .value = 0.8, .source = "of the link rate: 128-byte payloads and protocol on PCIe 4 and 5"};
inline constexpr EfficiencyConstant kHostAdamBytes = {
    .value = 180,
    .source =
        "bytes of host memory that one parameter of torch.optim.AdamW on the host takes the time "
        "of: six times the 30 of a fused update (gradient, parameter and moments in fp32, the new "
        "weight in bf16); DeepSpeed docs/_tutorials/zero-offload.md: its fused CPU Adam is 5 to 7 "
        "times as fast as PyTorch's"};
inline constexpr EfficiencyConstant kFusedHostAdamBytes = {
    .value = 42,
    .source =
        "bytes of host memory that DeepSpeed's step takes of one parameter, counted: gradient "
        "scaled 8, DeepSpeedCPUAdam 16 read and 12 written, the new weight in bf16 6 "
        "(csrc/adam/cpu_adam_impl.cpp, runtime/zero/stage_1_and_2.py step)"};
inline constexpr EfficiencyConstant kHostThreadRate = {
    .value = 6.5e9,
    .source =
        "bytes a second of host memory of one thread of it: 16 on a host of Xeon cores move 104 "
        "GB/s (data/measured/deepspeed_offload_h100.jsonl, ds-off-z2-1b and -z2-8b-l8-full)"};
inline constexpr EfficiencyConstant kPageableRate = {
    .value = 6e9,
    .source =
        "bytes a second between a GPU and host memory that is not page-locked: 6.0 to and 10.8 "
        "from an H100 on PCIe 5, 53 and 55 where it is (data/measured/README.md, "
        "deepspeed_offload_h100)"};
inline constexpr EfficiencyConstant kNewPagesRate = {
    .value = 3.6e9,
    .source =
        "bytes a second of weights converted into host memory of their own and sent from there: "
        "what the step of ds-off-z3-1b takes beyond that of -z2-1b "
        "(data/measured/deepspeed_offload_h100.jsonl)"};
inline constexpr EfficiencyConstant kNewPagesBackRate = {
    .value = 1.1e9,
    .source =
        "bytes a second of fp32 weights from the GPU into such memory, which one thread faults in: "
        "ds-off-z3only-p-1b of the same file"};
inline constexpr EfficiencyConstant kNetworkShare = {
    .value = 0.85,
    .source =
        "of the link rate, large messages: NCCL's all-to-all between H100 nodes of 3200 Gbit/s, "
        "0.83 on 4 nodes and 0.91 on 8, 0.70 and 0.72 with 64 MiB a GPU "
        "(awslabs/awsome-distributed-ai, ep-backend-comparison/RESULTS-p5.md)"};
inline constexpr EfficiencyConstant kCollectiveSms = {
    .value = 16,
    .source = "SMs of a collective, one a channel: NCCL 2.28.9 on H200 says 16 coll channels"};
inline constexpr EfficiencyConstant kCollectiveLaunch = {
    .value = 20e-6,
    .source =
        "seconds before the first byte moves: 22-26 us fitted on NVLink of B200 (SimuMax "
        "configs/system/b200_bf16_ceperm.json)"};
inline constexpr EfficiencyConstant kProductsBesideHopper = {
    .value = 0.92,
    .source =
        "of their rate beside collectives inside an NVLink domain, compute capability 9: calibrate "
        "--time on two H200"};
inline constexpr EfficiencyConstant kCollectivesBesideHopper = {
    .value = 0.28, .source = "of theirs beside products: the same"};
inline constexpr EfficiencyConstant kProductsBesideFsdp = {
    .value = 0.82,
    .source =
        "of their rate beside FSDP2's collectives, compute capability 9: NCCL's 24 channels of 132 "
        "SMs (estimator/ledger/outside_memory.cpp)"};
inline constexpr EfficiencyConstant kCollectivesBesideFsdp = {
    .value = 0.7,
    .source =
        "of theirs beside products: mean error of torchtitan's steps of 0.3 s and more 5.9 % with "
        "0.28, 5.2 with 0.7, 6.0 with 1, and of runs drawn later no worse (h200_frameworks.jsonl, "
        "frameworks_h200.jsonl)"};

// Causal attention forward over the dense bf16 peak, by sequence length: cuDNN 9.19 on H200, 64
// query and 8 key-value heads of 128 (cudnn-frontend benchmarks): 484, 591, 644, 673, 688 TFLOP/s.
inline constexpr std::array<CurvePoint, 5> kAttentionForwardShare = {{
    {.size = 2048, .value = 0.489},
    {.size = 4096, .value = 0.597},
    {.size = 8192, .value = 0.651},
    {.size = 16384, .value = 0.680},
    {.size = 32768, .value = 0.695},
}};

// The same backward, counted as 2.5 forwards: 370, 474, 541, 579, 581 TFLOP/s.
inline constexpr std::array<CurvePoint, 5> kAttentionBackwardShare = {{
    {.size = 2048, .value = 0.374},
    {.size = 4096, .value = 0.479},
    {.size = 8192, .value = 0.547},
    {.size = 16384, .value = 0.585},
    {.size = 32768, .value = 0.587},
}};

}  // namespace shardplan
