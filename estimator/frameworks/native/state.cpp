// The persistent arena of the native trainer. The weights of a unit (or of a chunk that no group
// divides) form one flat buffer, as do its gradients and each part of the optimizer's state; ZeRO
// divides them over the ranks of its group.
// Letters: N elements of a flat buffer, padding included; S ranks that share its optimizer state; T
// tokens of a microbatch, m microbatches of a step.
#include "estimator/frameworks/native/state.h"

#include <algorithm>
#include <array>
#include <utility>

#include "estimator/frameworks/native/token_pieces.h"
#include "estimator/frameworks/native/units.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan::native {
namespace {

struct NativeState {
  const Plan& plan;
  StateRowList list;

  // Buffers of equal size are copies of one row. Arenas exist before the first step.
  void add(StateRow row) {
    const auto equal = std::ranges::find_if(list.rows, [&](const StateRow& other) {
      return other.name == row.name && other.elements == row.elements;
    });
    if (equal != list.rows.end()) {
      equal->copies += row.copies;
      return;
    }
    row.first = std::min(row.first, row.last == Phase::kIdle ? Phase::kBuilt : row.first);
    list.add(row);
  }
};

struct BufferNames {
  std::string_view weights;
  std::string_view gradients;
  std::string_view master;
  std::string_view exp_avg;
  std::string_view exp_avg_sq;
  std::string_view gathered;
  std::string_view unreduced;
};
constexpr BufferNames kDense = {
    "weights",    "main_gradients",   "master_weights",      "exp_avg",
    "exp_avg_sq", "gathered_weights", "unreduced_gradients",
};
constexpr BufferNames kExpert = {
    "expert_weights",    "expert_main_gradients",   "expert_master_weights",      "expert_exp_avg",
    "expert_exp_avg_sq", "expert_gathered_weights", "expert_unreduced_gradients",
};

// One flat buffer of weights and everything that belongs to it.
void add_buffer(NativeState& state, const BufferNames& names, std::int64_t elements,
                std::int64_t shard) {
  const Plan& plan = state.plan;
  const auto from_stage = [&](std::int64_t zero) {
    return plan.zero >= zero ? div_ceil(elements, shard) : elements;
  };
  state.add(
      {.component = Component::kParameters,
       .name = names.weights,
       .elements = from_stage(3),
       .dtype = activation_dtype(plan.precision),
       .formula = "N (N/S under ZeRO-3): one flat buffer per unit, or chunk that nobody shares"});
  state.add({.component = Component::kGradients,
             .name = names.gradients,
             .elements = from_stage(2),
             .dtype = plan.grad_dtype,
             .formula = "N (N/S under ZeRO-2 and 3): accumulated in place"});
  const auto add_optimizer = [&](std::string_view name, DType dtype, std::string_view formula) {
    state.add({.component = Component::kOptimizer,
               .name = name,
               .elements = from_stage(1),
               .dtype = dtype,
               .formula = formula});
  };
  add_optimizer(names.master, plan.master_dtype, "N/S (N without ZeRO): main weights");
  add_optimizer(names.exp_avg, plan.exp_avg_dtype, "N/S: first moment");
  add_optimizer(names.exp_avg_sq, plan.exp_avg_sq_dtype, "N/S: second moment");
}

// A place of the dynamic arena that whole units take turns in for the whole step.
void add_cell(NativeState& state, std::string_view name, std::int64_t elements, DType dtype,
              std::string_view formula) {
  state.add({.component = Component::kCommunication,
             .name = name,
             .elements = elements,
             .dtype = dtype,
             .first = Phase::kForward,
             .last = Phase::kParameterGather,
             .formula = formula});
}

// All chunks' buffers of one kind of groups: `whole` elements each, or units.
struct ShardedKind {
  BufferNames names;
  std::int64_t shard = 1;
  std::int64_t ChunkBuffers::*whole = nullptr;
  std::int64_t NativeUnit::*unit = nullptr;
};

void add_kind(NativeState& state, const ShardedKind& kind, const std::vector<ChunkBuffers>& chunks,
              const std::vector<std::vector<NativeUnit>>& units) {
  if (!divides_units(kind.shard)) {
    for (const ChunkBuffers& chunk : chunks) {
      add_buffer(state, kind.names, chunk.*kind.whole, kind.shard);
    }
    return;
  }
  std::array<std::int64_t, 2> largest{};  // by cell
  for (const std::vector<NativeUnit>& chunk : units) {
    for (const NativeUnit& unit : chunk) {
      add_buffer(state, kind.names, unit.*kind.unit, kind.shard);
      std::int64_t& elements = largest[unit.in_second_cell ? 1 : 0];
      elements = std::max(elements, unit.*kind.unit);
    }
  }
  for (const std::int64_t elements : largest) {
    if (state.plan.zero >= 3) {
      add_cell(state, kind.names.gathered, elements, activation_dtype(state.plan.precision),
               "n, twice: the unit in use and the next one, whole");
    }
    if (state.plan.zero >= 2) {
      add_cell(state, kind.names.unreduced, elements, state.plan.grad_dtype,
               "n, twice: the unit whose backward runs and the one that is reduced");
    }
  }
}

void add_scalar(NativeState& state, std::string_view name, std::int64_t elements,
                std::string_view formula) {
  state.add({.component = Component::kOptimizer,
             .name = name,
             .elements = elements,
             .dtype = DType::kFp32,
             .formula = formula});
}

constexpr std::int64_t kProductWorkspaceElements = 8'388'608;  // 32 MiB of fp32

// Scratch of the kernels, one after another: partial sums of a norm's weight gradient, a stable
// sort of token ids (5.5 words a token), what a call of attention needs.
std::int64_t kernel_scratch_elements(const Job& job, const BlockShape& shape) {
  constexpr std::int64_t kNormBlocks = 264;
  constexpr std::int64_t kWordsPerKey = 8;
  constexpr std::int64_t kBarrierWords = 64;  // what ranks that exchange experts' rows meet on
  const std::int64_t choices = job.model.has_moe_layers() ? job.model.moe.topk : 1;
  const std::int64_t keys = shape.tokens * choices;
  return kBarrierWords + std::max(kNormBlocks * job.model.hidden, kWordsPerKey * keys);
}

// Factors of one product in fp8, rounded when it runs: 256 bytes of scales, then every factor at a
// multiple of 256 bytes. A linear layer [inputs, outputs] has three products: input and weight,
// output gradient and weight, output gradient and input; the second one rounds the output gradient
// by columns, too, for the third.
std::int64_t fp8_operand_bytes(const Job& job, const Plan& plan, const BlockShape& shape) {
  if (plan.precision != Precision::kFp8) {
    return 0;
  }
  constexpr std::int64_t kScaleBytes = 256;
  const auto rounded = [](std::int64_t elements) { return round_up(elements, kNativeAlignment); };
  const std::int64_t ffn = div_ceil(job.model.ffn, plan.tp);
  const std::array<std::array<std::int64_t, 2>, 4> layers = {
      {{shape.hidden, shape.query_width + 2 * shape.key_value_width},
       {shape.query_width, shape.hidden},
       {shape.hidden, shape.ffn_pieces * ffn},
       {ffn, shape.hidden}}};
  std::int64_t largest = 0;
  for (const auto& [inputs, outputs] : layers) {
    const std::int64_t input = rounded(shape.tokens * inputs);
    const std::int64_t gradient = rounded(shape.tokens * outputs);
    const std::int64_t weight = rounded(inputs * outputs);
    largest = std::max({largest, input + weight, 2 * gradient + weight, gradient + input});
  }
  return kScaleBytes + largest;
}

}  // namespace

std::vector<StateRow> state_rows(const Job& job, const Plan& plan, const StageLayout& stage,
                                 const StageTensors& tensors) {
  NativeState state{.plan = plan, .list = {.alignment_bytes = kNativeAlignment}};
  std::vector<std::vector<NativeUnit>> units;
  for (const ChunkLayout& chunk : stage.chunks) { units.push_back(native_units(job, plan, chunk)); }
  add_kind(state,
           {.names = kDense,
            .shard = dense_shard_size(job, plan),
            .whole = &ChunkBuffers::dense,
            .unit = &NativeUnit::dense},
           tensors.chunks, units);
  add_kind(state,
           {.names = kExpert,
            .shard = expert_shard_size(job, plan),
            .whole = &ChunkBuffers::expert,
            .unit = &NativeUnit::expert},
           tensors.chunks, units);
  add_scalar(state, "step_and_learning_rate", 2, "read by the optimizer on the device");
  add_scalar(state, "clip_factor", 2, "and the gradients' global norm, on the device");
  const bool has_experts = std::ranges::any_of(
      tensors.chunks, [](const ChunkBuffers& chunk) { return chunk.expert > 0; });
  add_scalar(state, "aux_loss", has_experts ? 1 : 0, "of the routers, summed on the device");
  add_scalar(state, "required_expert_rows", has_experts ? 1 : 0,
             "the most rows that a rank needed for its experts");
  add_scalar(state, "loss", stage.ends.has_head ? 1 : 0, "of the step, summed on the device");
  state.add({.component = Component::kTemporaries,
             .name = "gradient_norm",
             .elements = job.model.has_moe_layers() ? 2 : 1,
             .dtype = DType::kFp32,
             .first = Phase::kGradientNorm,
             .last = Phase::kGradientNorm,
             .formula = "sums of squares, dense and expert, on the frame"});
  return std::move(state.list.rows);
}

SequenceRows sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends) {
  const BlockShape shape = block_shape(job, plan);
  const std::int64_t microbatches = num_microbatches(job, plan);
  const auto input = [&](std::string_view name, bool exists) {
    return StateRow{.component = Component::kActivations,
                    .name = name,
                    .elements = exists ? shape.tokens : 0,
                    .dtype = DType::kInt32,
                    .copies = microbatches,
                    .first = Phase::kBuilt,
                    .formula = "T, m times: of every microbatch of the step"};
  };
  // Tokens of all tp ranks under sequence parallelism, and room for one piece of several.
  const std::int64_t pieces = token_pieces(job, plan);
  const std::int64_t room = pieces > 1 ? div_exact(shape.tokens, pieces) : 0;
  const auto cell = [&](std::string_view name, std::int64_t tokens, std::string_view formula) {
    return StateRow{.component = Component::kCommunication,
                    .name = name,
                    .elements = shape.gathers_sequence ? shape.hidden * tokens : 0,
                    .dtype = shape.dtype,
                    .first = Phase::kForward,
                    .last = Phase::kParameterGather,
                    .formula = formula};
  };
  SequenceRows rows = {
      input("token_ids", ends.has_embedding),
      input("labels", ends.has_head),
      StateRow{.component = Component::kWorkspace,
               .name = "rotary_table",
               .elements = job.sequence_length * job.model.rotary_dim(),
               .dtype = DType::kFp32,
               .first = Phase::kBuilt,
               .formula = "s*d: sines and cosines of every position"},
      StateRow{.component = Component::kWorkspace,
               .name = "product_workspace",
               .elements = kProductWorkspaceElements,
               .dtype = DType::kFp32,
               .first = Phase::kBuilt,
               .formula = "32 MiB: what cuBLASLt recommends on Hopper"},
      StateRow{.component = Component::kWorkspace,
               .name = "kernel_scratch",
               .elements = kernel_scratch_elements(job, shape),
               .dtype = DType::kFp32,
               .first = Phase::kBuilt,
               .formula = "64 + max(264*h, 8*T*k): barrier, partial sums of norms, sorting "
                          "T tokens or their T*k choices of experts"},
      StateRow{.component = Component::kWorkspace,
               .name = "fp8_operands",
               .elements = fp8_operand_bytes(job, plan, shape),
               .dtype = DType::kFp8,
               .first = Phase::kBuilt,
               .formula = "256 + the rounded factors of the largest fp8 product"},
      cell("exchanged_tokens", shape.tokens + room,
           "h*(T + T/pieces), h*T in one piece: gathered tokens and partial sums"),
      cell("gathered_inputs", shape.tokens, "h*T: gathered again for weight gradients")};
  return sized(rows, kNativeAlignment);
}

}  // namespace shardplan::native
