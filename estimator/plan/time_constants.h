// The measured, documented and fitted numbers of the time model that hold for every GPU, as
// data/time/constants.json states them, each with its origin and source. Rates of a GPU's own file
// replace them.
#pragma once

#include <array>
#include <string_view>
#include <variant>
#include <vector>

#include "estimator/plan/cluster_spec.h"

namespace shardplan {

// Seconds in which a router chooses experts, in either direction: so many, and so many for each
// token and expert.
struct ChoiceCost {
  double forward_s = 0;
  double forward_score_s = 0;
  double backward_s = 0;
  double backward_score_s = 0;
};

// Shares where the name says no unit.
struct TimeConstants {
  // Products, of the GPU's dense peak where its file says no rate.
  double gemm_share = 0;  // bf16, fp16 and fp32, in full waves of tiles
  double fp8_gemm_share = 0;
  double attention_load = 0;         // of the curves below, behind products
  double weight_gradient_share = 0;  // added to fp32, over other products
  double blockwise_share = 0;        // fp8 with a scale for 128 values, over one for a tensor
  double gemm_prologue = 0;          // columns of k: a tile's start and end

  // Attention.
  double small_head_share = 0;      // heads of 64 or less, over 128
  double own_backward_share = 0;    // our own kernels on gathered keys
  double flash2_forward_share = 0;  // FlashAttention 2 over cuDNN
  double flash2_backward_share = 0;
  double flex_forward_share = 0;  // flex_attention over cuDNN
  double flex_backward_share = 0;

  // Memory-bound kernels, of a copy's rate where none is named.
  double copy_share = 0;  // fused kernels, of the datasheet's bandwidth
  double fused_share = 0;
  double streamed_share = 0;       // PyTorch's vectorized kernels
  double converted_share = 0;      // those that broadcast or change the type
  double rearranged_share = 0;     // those on views that are not contiguous
  double multi_tensor_share = 0;   // Transformer Engine's over lists of tensors
  double engine_rotary_share = 0;  // its rotary embedding
  double embedding_sum_share = 0;  // backward of PyTorch's embedding
  double index_add_share = 0;
  double chunk_copy_share = 0;  // a copy that swaps two dimensions

  // Experts.
  double expert_look_s = 0;     // one expert, token, 1024 columns and multiprocessor
  double capacity_start_s = 0;  // choosing tokens of experts with a capacity
  double capacity_score_s = 0;  // the same, for each token and expert
  double apart_product_s = 0;   // one product, beyond its part of one of all rows
  // Routers by operators or fused, whose experts stand in groups or not.
  ChoiceCost choice;
  ChoiceCost choice_in_groups;
  ChoiceCost fused_choice;
  ChoiceCost fused_choice_in_groups;

  // The clock of products among other kernels, over that of products alone.
  double light_cycle = 0;  // cycle that FlashAttention 2 makes room for
  double top_clock = 0;

  // Links, of the datasheet's rate.
  double nvlink_share = 0;
  double nvlink5_share = 0;
  double nvlink5_exchange_share = 0;  // all-to-all
  double deep_ep_start_s = 0;         // a call
  double deep_ep_row_s = 0;           // each row received
  double deep_ep_link_share = 0;
  double hybrid_ep_start_s = 0;  // a call
  double hybrid_ep_link_share = 0;
  double pcie_share = 0;

  // The host's memory, where the optimizer runs there.
  double host_adam_bytes = 0;             // a parameter, torch.optim.AdamW
  double fused_host_adam_bytes = 0;       // a parameter, a fused update
  double host_thread_bytes_per_s = 0;     // one thread of a fused update
  double pageable_bytes_per_s = 0;        // to and from memory that is not page-locked
  double new_pages_bytes_per_s = 0;       // weights sent from memory of their own
  double new_pages_back_bytes_per_s = 0;  // weights into such memory

  // Collectives between nodes, and their start.
  double network_share = 0;  // of the link's rate
  double tree_share = 0;     // all-reduce by a tree, of a ring's bandwidth
  double collective_sms = 0;
  double collective_launch_s = 0;  // before the first byte moves

  // Products and collectives beside each other, each of the rate that it has alone.
  double products_beside_hopper = 0;  // compute capability 9
  double collectives_beside_hopper = 0;
  double products_beside_fsdp = 0;  // the same beside FSDP2's collectives
  double collectives_beside_fsdp = 0;

  // Causal attention, of the dense bf16 peak, by the length of a sequence; backward is counted as
  // 2.5 forwards.
  std::vector<CurvePoint> attention_forward_share;
  std::vector<CurvePoint> attention_backward_share;

  // Kernels of tokens that go by pieces.
  double piece_s = 0;  // every further operation
};

// A constant by the name that the file gives it.
struct TimeConstant {
  std::string_view name;
  std::variant<double TimeConstants::*, ChoiceCost TimeConstants::*,
               std::vector<CurvePoint> TimeConstants::*>
      member;
  std::string_view unit = {};  // nothing: a share
};
inline constexpr auto kTimeConstants = std::to_array<TimeConstant>({
    {.name = "gemm_share", .member = &TimeConstants::gemm_share},
    {.name = "fp8_gemm_share", .member = &TimeConstants::fp8_gemm_share},
    {.name = "attention_load", .member = &TimeConstants::attention_load},
    {.name = "weight_gradient_share", .member = &TimeConstants::weight_gradient_share},
    {.name = "blockwise_share", .member = &TimeConstants::blockwise_share},
    {.name = "gemm_prologue", .member = &TimeConstants::gemm_prologue, .unit = "columns"},
    {.name = "small_head_share", .member = &TimeConstants::small_head_share},
    {.name = "own_backward_share", .member = &TimeConstants::own_backward_share},
    {.name = "flash2_forward_share", .member = &TimeConstants::flash2_forward_share},
    {.name = "flash2_backward_share", .member = &TimeConstants::flash2_backward_share},
    {.name = "flex_forward_share", .member = &TimeConstants::flex_forward_share},
    {.name = "flex_backward_share", .member = &TimeConstants::flex_backward_share},
    {.name = "copy_share", .member = &TimeConstants::copy_share},
    {.name = "fused_share", .member = &TimeConstants::fused_share},
    {.name = "streamed_share", .member = &TimeConstants::streamed_share},
    {.name = "converted_share", .member = &TimeConstants::converted_share},
    {.name = "rearranged_share", .member = &TimeConstants::rearranged_share},
    {.name = "multi_tensor_share", .member = &TimeConstants::multi_tensor_share},
    {.name = "engine_rotary_share", .member = &TimeConstants::engine_rotary_share},
    {.name = "embedding_sum_share", .member = &TimeConstants::embedding_sum_share},
    {.name = "index_add_share", .member = &TimeConstants::index_add_share},
    {.name = "chunk_copy_share", .member = &TimeConstants::chunk_copy_share},
    {.name = "expert_look_s", .member = &TimeConstants::expert_look_s, .unit = "s"},
    {.name = "capacity_start_s", .member = &TimeConstants::capacity_start_s, .unit = "s"},
    {.name = "capacity_score_s", .member = &TimeConstants::capacity_score_s, .unit = "s"},
    {.name = "apart_product_s", .member = &TimeConstants::apart_product_s, .unit = "s"},
    {.name = "choice", .member = &TimeConstants::choice, .unit = "s"},
    {.name = "choice_in_groups", .member = &TimeConstants::choice_in_groups, .unit = "s"},
    {.name = "fused_choice", .member = &TimeConstants::fused_choice, .unit = "s"},
    {.name = "fused_choice_in_groups",
     .member = &TimeConstants::fused_choice_in_groups,
     .unit = "s"},
    {.name = "light_cycle", .member = &TimeConstants::light_cycle},
    {.name = "top_clock", .member = &TimeConstants::top_clock},
    {.name = "nvlink_share", .member = &TimeConstants::nvlink_share},
    {.name = "nvlink5_share", .member = &TimeConstants::nvlink5_share},
    {.name = "nvlink5_exchange_share", .member = &TimeConstants::nvlink5_exchange_share},
    {.name = "deep_ep_start_s", .member = &TimeConstants::deep_ep_start_s, .unit = "s"},
    {.name = "deep_ep_row_s", .member = &TimeConstants::deep_ep_row_s, .unit = "s"},
    {.name = "deep_ep_link_share", .member = &TimeConstants::deep_ep_link_share},
    {.name = "hybrid_ep_start_s", .member = &TimeConstants::hybrid_ep_start_s, .unit = "s"},
    {.name = "hybrid_ep_link_share", .member = &TimeConstants::hybrid_ep_link_share},
    {.name = "pcie_share", .member = &TimeConstants::pcie_share},
    {.name = "host_adam_bytes", .member = &TimeConstants::host_adam_bytes, .unit = "bytes"},
    {.name = "fused_host_adam_bytes",
     .member = &TimeConstants::fused_host_adam_bytes,
     .unit = "bytes"},
    {.name = "host_thread_bytes_per_s",
     .member = &TimeConstants::host_thread_bytes_per_s,
     .unit = "bytes/s"},
    {.name = "pageable_bytes_per_s",
     .member = &TimeConstants::pageable_bytes_per_s,
     .unit = "bytes/s"},
    {.name = "new_pages_bytes_per_s",
     .member = &TimeConstants::new_pages_bytes_per_s,
     .unit = "bytes/s"},
    {.name = "new_pages_back_bytes_per_s",
     .member = &TimeConstants::new_pages_back_bytes_per_s,
     .unit = "bytes/s"},
    {.name = "network_share", .member = &TimeConstants::network_share},
    {.name = "tree_share", .member = &TimeConstants::tree_share},
    {.name = "collective_sms", .member = &TimeConstants::collective_sms, .unit = "multiprocessors"},
    {.name = "collective_launch_s", .member = &TimeConstants::collective_launch_s, .unit = "s"},
    {.name = "products_beside_hopper", .member = &TimeConstants::products_beside_hopper},
    {.name = "collectives_beside_hopper", .member = &TimeConstants::collectives_beside_hopper},
    {.name = "products_beside_fsdp", .member = &TimeConstants::products_beside_fsdp},
    {.name = "collectives_beside_fsdp", .member = &TimeConstants::collectives_beside_fsdp},
    {.name = "attention_forward_share", .member = &TimeConstants::attention_forward_share},
    {.name = "attention_backward_share", .member = &TimeConstants::attention_backward_share},
    {.name = "piece_s", .member = &TimeConstants::piece_s, .unit = "s"},
});

}  // namespace shardplan
