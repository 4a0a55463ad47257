// Behaviours and numbers by which a training framework takes memory and time, as its file selects.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "estimator/plan/dtype.h"
#include "estimator/plan/framework_choices.h"
#include "estimator/plan/kernel_choices.h"
#include "estimator/plan/model_parts.h"
#include "estimator/plan/plan.h"
#include "estimator/plan/trainer_choices.h"

namespace shardplan {

// Which framework: an index of the rows of estimator/frameworks (pieces/memory_model.h).
enum class MemoryModel : std::uint8_t;
struct HostTables;  // host_table.h

// When FSDP2 frees a block's gathered parameters after its forward.
enum class ReshardAfterForward {
  kDefault,  // yes without pipelining, no with it; never those of final norm and head
  kNever,
  kAlways,
};

// DeepSpeed's overlap_comm: whether gathers and reductions run beside the work of a microbatch.
enum class OverlapComm {
  kDefault,  // under ZeRO-3
  kOff,
  kOn,
};

// How DeepSpeed's ZeRO-1 and 2 look for infinities and NaNs in gradients before a step.
enum class OverflowCheck {
  kFp16ByCopies,  // those in fp16: a copy in fp32 and masks, tensor by tensor
  kByCopies,      // those in bf16 as well
  kByExtremes,    // both: the largest and the smallest value of each tensor, no copies
};

enum class AllocatorKind {
  kStaticArenas,       // two arenas, sizes known before the first step
  kCaching,            // PyTorch CUDACachingAllocator, default settings
  kCachingExpandable,  // the same with expandable_segments:True
};

// What a framework recomputes where nobody says otherwise.
enum class DefaultRecompute {
  kNone,
  kEverySecondLayer,  // torchtitan: mode selective with selective_ac_option 2
};

// Names as written in the profiles' files, in options and in reports.
inline constexpr std::array<NamedValue<AllocatorKind>, 3> kAllocatorKinds = {{
    {.value = AllocatorKind::kStaticArenas, .name = "static_arenas"},
    {.value = AllocatorKind::kCaching, .name = "caching"},
    {.value = AllocatorKind::kCachingExpandable, .name = "caching_expandable"},
}};
inline constexpr std::array<NamedValue<ReshardAfterForward>, 3> kReshardAfterForward = {{
    {.value = ReshardAfterForward::kDefault, .name = "default"},
    {.value = ReshardAfterForward::kNever, .name = "never"},
    {.value = ReshardAfterForward::kAlways, .name = "always"},
}};
inline constexpr std::array<NamedValue<OverlapComm>, 3> kOverlapComms = {{
    {.value = OverlapComm::kDefault, .name = "default"},
    {.value = OverlapComm::kOff, .name = "off"},
    {.value = OverlapComm::kOn, .name = "on"},
}};
inline constexpr std::array<NamedValue<OverflowCheck>, 3> kOverflowChecks = {{
    {.value = OverflowCheck::kFp16ByCopies, .name = "fp16_by_copies"},
    {.value = OverflowCheck::kByCopies, .name = "by_copies"},
    {.value = OverflowCheck::kByExtremes, .name = "by_extremes"},
}};
inline constexpr std::array<NamedValue<DefaultRecompute>, 2> kDefaultRecomputes = {{
    {.value = DefaultRecompute::kNone, .name = "none"},
    {.value = DefaultRecompute::kEverySecondLayer, .name = "every_second_layer"},
}};
inline constexpr std::array<NamedValue<TpOverlap>, 3> kTpOverlaps = {{
    {.value = TpOverlap::kExposed, .name = "exposed"},
    {.value = TpOverlap::kBackward, .name = "backward"},
    {.value = TpOverlap::kPieces, .name = "pieces"},
}};
inline constexpr std::array<NamedValue<CpOverlap>, 3> kCpOverlaps = {{
    {.value = CpOverlap::kExposed, .name = "exposed"},
    {.value = CpOverlap::kAttention, .name = "attention"},
    {.value = CpOverlap::kSequences, .name = "sequences"},
}};
constexpr const auto& names_of(AllocatorKind) {
  return kAllocatorKinds;
}
constexpr const auto& names_of(ReshardAfterForward) {
  return kReshardAfterForward;
}
constexpr const auto& names_of(OverlapComm) {
  return kOverlapComms;
}
constexpr const auto& names_of(OverflowCheck) {
  return kOverflowChecks;
}
constexpr const auto& names_of(DefaultRecompute) {
  return kDefaultRecomputes;
}
constexpr const auto& names_of(TpOverlap) {
  return kTpOverlaps;
}
constexpr const auto& names_of(CpOverlap) {
  return kCpOverlaps;
}

// How a framework lays out parameters, layers and pipelines in all its versions (NAME/layout.h).
struct FrameworkLayout {
  bool router_bias_is_buffer = false;           // none of the parameters
  bool cuts_fused_qkv_evenly = false;           // over tp, whatever the heads of keys and values
  bool reduces_whole_experts_as_dense = false;  // those that no ep divides, over the dense ranks
  bool experts_vary_by_chance = false;          // rows of a rank's experts; else they are even
  bool fuses_norms_into_linears = false;        // where a norm stands before one linear layer
  bool spreads_uneven_layers = false;           // over the first chunks; else they are refused
  bool deals_blocks_by_cost = false;    // stages get blocks in order, by what their products cost
  bool layers_differ_by_place = false;  // ends of a chunk, and a first layer of experts
  bool sends_from_buffers = false;      // a chunk's outputs lie in two buffers
  bool blocks_make_gradients = false;   // in their first backward pass; else they are there before
  bool gathers_for_pipeline = false;    // under ZeRO-3 actions of a schedule gather parameters
  bool has_mixed_layers = false;        // layers of one model may have several kinds of blocks
  ModelParts model_parts = {};          // that it has pieces for, beyond those that all have

  friend bool operator==(const FrameworkLayout&, const FrameworkLayout&) = default;
};

struct FrameworkProfile {
  std::string name;                                         // "megatron"
  std::string version;                                      // "core_v0.16.1"
  MemoryModel memory_model{};                               // the first row
  FrameworkLayout layout = {.cuts_fused_qkv_evenly = true,  // that row's
                            .reduces_whole_experts_as_dense = true,
                            .experts_vary_by_chance = true,
                            .fuses_norms_into_linears = true,
                            .has_mixed_layers = true,
                            .model_parts = kGptOssParts | kGatedDeltaParts};
  FrameworkChoices choices;                // that row's; a profile without a file has none
  std::shared_ptr<const HostTables> host;  // none: hosts launch in no time

  // Options: declared in the profile's file with type, default and source.
  SwigluKind swiglu = SwigluKind::kFused;
  CrossEntropyKind cross_entropy = CrossEntropyKind::kTeFused;
  bool gradient_accumulation_fusion = true;  // weight gradient GEMM adds into the main gradient
  bool dummy_weight_gradients = true;  // Transformer Engine's cached dummies, one per weight shape
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  Fp8Recipe fp8_recipe = Fp8Recipe::kDelayed;  // of precision fp8
  bool fp8_param_gather = false;     // weights of linear layers are fp8 alone, without a bf16 copy
  bool eager_communicators = false;  // every group's communicator created at start-up
  bool deterministic_attention = false;
  AttentionBackend attention_backend = AttentionBackend::kAuto;
  bool masked_softmax_fusion = true;       // kLocal: one kernel scales, masks and normalises
  bool attention_softmax_in_fp32 = false;  // kLocal: and where it does not, fp32 is kept
  bool attention_mask = false;             // the data loader makes a mask of [b, 1, s, s] bytes
  MoeDispatcher moe_dispatcher = MoeDispatcher::kAllToAll;
  DType moe_router_dtype = DType::kBf16;  // of routing probabilities: bf16 stands for the weights'
  // Tokens choose their experts in turn, whatever the router says: every expert has as many.
  bool moe_router_force_load_balancing = false;
  bool moe_grouped_gemm = true;     // one grouped product for all experts; else one after the other
  bool moe_permute_fusion = false;  // one kernel permutes rows of experts, or puts them back
  // That kernel looks at every expert for each token (Transformer Engine before 2.6).
  bool moe_permute_scans_experts = false;
  bool moe_router_casts = false;   // the router's input and weights become fp32 for its product
  bool moe_router_fusion = false;  // fused kernels choose experts; else operators of PyTorch
  bool moe_shared_expert_overlap = false;  // shared experts run beside the exchanges of others
  bool rope_fusion = true;  // one kernel turns queries and keys; else operators of PyTorch
  CudaGraphs cuda_graphs = CudaGraphs::kNone;
  bool launch_blocking = false;  // the host waits for each kernel: nothing runs beside another
  bool init_model_with_meta_device = false;  // ZeRO-2 and 3 build the model module by module
  bool deallocate_pipeline_outputs = true;
  bool fused_optimizer = true;   // no temporary of one fp32 copy in the optimizer step
  bool muon_nesterov = false;    // Muon's updates look ahead by Nesterov's momentum
  bool compile = false;          // torch.compile of what the next two say
  bool compile_layers = true;    // where compile is on: of every transformer block
  bool compile_loss = true;      // and of the loss
  bool root_holds_ends = false;  // embedding, final norm and head are one FSDP group, the root's
  ReshardAfterForward reshard_after_forward = ReshardAfterForward::kDefault;
  bool account_for_embedding_in_split = false;  // the embedding counts as a layer of the partition
  bool account_for_loss_in_split = false;       // so does the head
  std::int64_t cross_entropy_chunks = 8;        // kChunked: pieces of the token dimension
  std::int64_t tensor_parallel_chunk_tokens = 4096;  // native: tokens that tp sends as one piece
  // Megatron-FSDP: elements that wait for their reduction; 0: two layers or a billion.
  std::int64_t suggested_communication_unit_size = 0;
  bool fsdp_whole_moments = false;  // Megatron-FSDP: no rank's moments are divided
  bool fsdp_double_buffer = false;  // Megatron-FSDP: layers are gathered into buffers that stay
  bool nccl_ub = false;  // what is gathered and reduced lies in buffers that NCCL registers
  bool decoupled_in_proj = false;  // Megatron-SWIFT: two products in front of a gated delta net
  bool log_params_norm = false;    // of all parameters, behind every step
  // Microbatches whose gradient of the output layer's weight waits for the end of the step.
  std::int64_t deferred_embedding_wgrads = 0;
  std::int64_t microbatch_group_size = 0;  // interleaved: microbatches per virtual stage; 0: pp
  double moe_imbalance_factor = 1;         // dropless: tokens of the busiest rank over the mean
  double moe_load_spread = 0;  // of a rank's rows between layers and microbatches, over the mean
  double moe_capacity_factor = 0;  // > 0: tokens per expert are bounded (drop and pad); 0: dropless
  DType weights_dtype = DType::kBf16;    // transformers, as what follows: as the model is loaded
  bool autocast = true;                  // products of mixed precision; else weights' own type
  bool tf32 = false;                     // products of fp32 round what they read to TF32
  bool reentrant_checkpoint = false;     // torch.utils.checkpoint with use_reentrant
  bool checkpoints_layer_parts = false;  // norms, attention and FFN each; else whole layers
  bool loads_whole = false;              // onto the GPU, then FSDP2 shards what lies there
  TrainerLoop loop = TrainerLoop::kTrainer;
  std::int64_t fsdp_version = 2;  // 1: FullyShardedDataParallel, 2: fully_shard
  FsdpUpcast fsdp_upcast = FsdpUpcast::kTrained;
  FsdpEnds fsdp_ends = FsdpEnds::kTailWithHead;
  DType fsdp_reduce_dtype = DType::kBf16;  // FSDP2: of gradients as they are reduced
  bool fsdp_adapters_alone = false;        // FSDP2: each matrix of an adapter is a group
  bool gradient_as_bucket_view = false;    // DDP: gradients are views of its buckets
  HeadLoss head_loss = HeadLoss::kStock;
  std::int64_t loss_chunk_tokens = 0;  // kPerToken: tokens of a piece; 0: all at once
  Objective objective = Objective::kNextToken;
  ObjectiveTrainer objective_trainer = ObjectiveTrainer::kTrl;
  bool precomputes_reference = false;  // its log-probabilities, before training begins
  std::int64_t num_labels = 1;         // of the layer behind the model that ends in labels
  bool foreach_optimizer = false;      // where it is not fused: lists of tensors; else one by one
  std::int64_t projection_rank = 128;  // GaLore, APOLLO: of projected gradients
  OptimizerSteps optimizer_steps = OptimizerSteps::kTogether;  // GaLore, APOLLO
  bool packed_sequences = false;  // positions begin anew within a row of tokens
  bool wide_ends = false;         // norms, embedding and head are fp32 beside bf16 linear layers
  FsdpPrefetch fsdp_prefetch = FsdpPrefetch::kNone;
  bool eager_experts = false;  // one after the other, by a loop of the host
  ExpertKernels expert_kernels = ExpertKernels::kGrouped;  // where they are not eager
  bool mixer_kernels = false;        // those of fla and mamba_ssm; else PyTorch's operators
  bool convolution_kernels = false;  // those of causal_conv1d; else PyTorch's operators
  bool checkpoints_frozen = true;    // recomputed are layers without trained parameters as well
  bool narrow_frozen = false;  // frozen parameters are bf16 where trained ones are loaded wider
  TowerUse vision_tower = TowerUse::kAbsent;
  bool fsdp_wraps_tower = true;      // its layers, one by one; else it is of the root's group
  bool finds_unused = false;         // DDP looks for parameters without gradients, asked to
  bool quantizes_experts = false;    // their weights, too, which are unpacked whole as they run
  bool linear_experts = false;       // Llama 4: each expert is linear layers, one after another
  bool float_quant_storage = false;  // 4-bit weights lie in bf16, which FSDP2 shards
  DType quant_compute_dtype = DType::kBf16;  // of their products, where others are in bf16
  bool fused_norm_rotary = false;            // axolotl's kernel of norms of heads and rotation
  bool adapter_kernels = false;              // axolotl's autograd functions around adapters
  bool tensor_parallel_dtensors = true;      // weights over tp are DTensors; else plain parts
  ActivationOffload activation_offload = ActivationOffload::kStreams;
  bool offload_spares_weights = true;  // weights that operators save stay on the GPU
  std::int64_t ffn_tiles = 0;          // of tokens, one after the other; 0: all at once
  FakeQuantization fake_quantization = FakeQuantization::kNone;
  std::int64_t fake_quantization_group = 128;  // of weights that share a scale
  bool recompute_allgather = true;             // nanotron: gathered inputs are gathered again
  bool keeps_gather_buffers = false;  // nanotron: what is gathered lies in buffers that stay
  bool interleaved_rotary = false;    // nanotron: a table in fp32 beside flash-attn's
  bool ends_on_last_stage = false;    // nanotron: final norm, head and loss, whatever they cost
  OverlapComm overlap_comm = OverlapComm::kDefault;    // DeepSpeed, as what follows
  std::int64_t reduce_bucket_elements = 500'000'000;   // reduce_bucket_size
  std::int64_t prefetch_bucket_elements = 50'000'000;  // stage3_prefetch_bucket_size
  std::int64_t max_live_parameters = 1'000'000'000;    // stage3_max_live_parameters
  LigerKernel liger_kernel = LigerKernel::kOff;
  bool offload_pin_memory = true;  // pin_memory of what is offloaded
  std::int64_t host_threads = 1;   // of a rank's optimizer on the host
  OverflowCheck overflow_check = OverflowCheck::kByExtremes;
  bool divides_logits_gradient = false;   // by the microbatches, in a hook; else the loss itself is
  bool makes_buckets_first = false;       // before the loss's backward, not at the first gradient
  bool flattens_on_gpu = true;            // the model, where the GPU has room; else on the host
  bool casts_divided_parameters = false;  // ZeRO-3: adapters become bf16
  std::int64_t persistent_elements = 100'000;  // stage3_param_persistence_threshold

  // Numbers, with their source in the profile's file.
  std::int64_t vocab_multiple = 128;       // vocabulary padded to this times tp; 1: no padding
  std::int64_t fixed_allocated_bytes = 0;  // small tensors not listed one by one
  std::int64_t fixed_workspace_bytes = 0;  // cuBLAS workspace inside the allocator, per stream
  std::int64_t torch_workspace_bytes = 0;  // of torch's cuBLAS handles; 0: torch's default
  AllocatorKind allocator = AllocatorKind::kCaching;
  double cross_entropy_bytes_per_logit = 0;  // 0: follows from cross_entropy; else overrides it

  // Defaults of the plan under this profile; printed with every answer.
  std::int64_t default_zero = 1;
  bool default_sequence_parallel = true;                 // when tp > 1
  Schedule default_pipeline_schedule = Schedule::k1F1B;  // pp > 1 and vpp == 1
  DType default_grad_dtype = DType::kFp32;
  CpMethod default_cp_method = CpMethod::kRing;
  DefaultRecompute default_recompute = DefaultRecompute::kNone;

  // Time behaviours: shares of a cost that stays visible, 0 hidden .. 1 fully exposed.
  double exposed_tp_share = 1;
  double exposed_cp_share = 1;
  double exposed_ep_share = 1;
  double exposed_pp_share = 1;
  double exposed_dp_share = 1;                    // of what exceeds the compute it may hide behind
  TpOverlap tp_overlap = TpOverlap::kExposed;     // of what exposed_tp_share leaves
  std::int64_t tp_overlap_pieces = 4;             // kPieces
  CpOverlap cp_overlap = CpOverlap::kExposed;     // of what exposed_cp_share leaves
  bool overlap_p2p_comm = false;                  // sends run beside the work of other chunks
  bool overlap_moe_expert_parallel_comm = false;  // exchanges run beside another microbatch's work
  bool scatter_gather_sends = false;  // without sequence parallelism a send is divided over tp
  double handover_s = 0;  // of one tensor to the next stage: messages and waits besides its bytes
  std::int64_t all_reduced_zero = 0;  // highest ZeRO stage that sums whole gradients

  // What the framework answers, or what is said there for those that do not (FrameworkChoices).
  CountedEnds counted_ends() const { return answer_of(choices.counted_ends, *this); }
  bool puts_ends_last() const { return answer_of(choices.puts_ends_last, *this); }
  std::int64_t microbatch_group() const { return answer_of(choices.microbatch_group, *this); }
  bool reshards_forward() const { return answer_of(choices.reshards_forward, *this); }
  bool keeps_sent_outputs() const { return answer_of(choices.keeps_sent_outputs, *this); }
  bool launches_compiled() const { return answer_of(choices.launches_compiled, *this); }
  ExpertRows expert_rows() const { return answer_of(choices.expert_rows, *this); }
};

}  // namespace shardplan
