#include "validator/lower/lower.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "estimator/plan/schedule.h"
#include "validator/lower/attention.h"
#include "validator/lower/chunk.h"
#include "validator/lower/fp8.h"
#include "validator/lower/ops.h"
#include "validator/lower/parameters.h"
#include "validator/lower/sharding.h"
#include "validator/lower/tensor.h"
#include "validator/lower/update.h"

namespace shardplan {
namespace {

std::string number(std::int64_t value) {
  return std::to_string(value);
}

std::optional<std::string> model_not_lowered(const ModelSpec& model) {
  if (model.attention != AttentionKind::kGqa) {
    return "model.attention: mla";
  }
  if (!model.gated_ffn || model.qkv_bias || model.attention_output_bias || model.ffn_bias ||
      model.qk_norm) {
    return "model: gated_ffn off, a bias or qk_norm";
  }
  if (model.norms_per_layer != 2) {
    return "model.norms_per_layer: " + number(model.norms_per_layer);
  }
  if (model.num_mtp_layers != 0) {
    return "model.num_mtp_layers: " + number(model.num_mtp_layers);
  }
  if (model.moe.shared_gate || model.moe.router_bias) {
    return "model.moe: shared_gate or router_bias";
  }
  return std::nullopt;
}

std::optional<std::string> recompute_not_lowered(const Recompute& recompute) {
  if (!recompute.policy.empty()) {
    return "plan.recompute.policy: " + recompute.policy;
  }
  if (recompute.modules.mla_up_proj) {
    return "plan.recompute.modules.mla_up_proj: true";
  }
  return std::nullopt;
}

bool is_lowered(Schedule schedule) {
  return schedule != Schedule::kInterleavedZeroBubble && schedule != Schedule::kZbv;
}

// rows * factor rounded up, the factor taken to six decimals.
std::int64_t bounded_rows(std::int64_t rows, double factor) {
  return div_ceil(rows * std::llround(factor * 1e6), 1'000'000);
}

LocalSizes local_sizes(const Job& job, const Plan& plan, const RankCoordinates& at) {
  LocalSizes s;
  s.tokens = tokens_per_microbatch(job, plan);
  s.rows = plan.sequence_parallel ? div_exact(s.tokens, plan.tp) : s.tokens;
  s.hidden = job.model.hidden;
  s.query_heads = div_exact(job.model.num_heads, plan.tp);
  s.kv_heads = div_exact(job.model.num_kv_heads, plan.tp);
  s.head_dim = job.model.head_dim;
  s.ffn = div_exact(job.model.ffn, plan.tp);
  s.vocab_rows = div_exact(padded_vocab(job, plan), plan.tp);
  s.first_vocab_row = at.tp * s.vocab_rows;
  if (job.model.has_moe_layers()) {
    const MoeSpec& moe = job.model.moe;
    s.own_rows = div_exact(s.tokens, plan.tp);
    s.choices = moe.topk;
    s.experts = div_exact(moe.num_experts, plan.ep);
    s.expert_ffn = div_exact(moe.expert_ffn, plan.etp);
    s.shared_ffn = div_exact(moe.shared_ffn, plan.tp);
    s.even_rows = s.own_rows * s.choices * plan.etp;
    s.received_rows = bounded_rows(s.even_rows, plan.moe_buffer_factor);
  }
  return s;
}

// The group of this kind that the rank belongs to; -1 where it is alone.
std::int64_t add_group(Lowering& l, GroupKind kind) {
  Program& program = l.builder.program();
  const std::vector<std::int64_t> ranks = group_ranks(l.job, l.plan, kind, program.rank);
  if (ranks.size() < 2) {
    return -1;
  }
  program.groups.push_back({.kind = kind, .ranks = ranks});
  return static_cast<std::int64_t>(program.groups.size()) - 1;
}

void place_expert_groups(Lowering& l) {
  Program& program = l.builder.program();
  const std::vector<std::int64_t> ranks =
      group_ranks(l.job, l.plan, GroupKind::kExperts, program.rank);
  l.expert_member = std::ranges::find(ranks, program.rank) - ranks.begin();
  program.groups.push_back({.kind = GroupKind::kExperts, .ranks = ranks});
  l.groups.experts = static_cast<std::int64_t>(program.groups.size()) - 1;
  l.groups.expert = {.all = add_group(l, GroupKind::kExpertDp),
                     .shard = add_group(l, GroupKind::kExpertShard),
                     .replica = add_group(l, GroupKind::kExpertReplica)};
  l.groups.tp_cp = add_group(l, GroupKind::kTpCp);
}

void place_groups(Lowering& l) {
  l.groups = {.tp = add_group(l, GroupKind::kTp),
              .cp = add_group(l, GroupKind::kCp),
              .pp = add_group(l, GroupKind::kPp),
              .embedding = add_group(l, GroupKind::kEmbedding),
              .dense = {.all = add_group(l, GroupKind::kDpCp),
                        .shard = add_group(l, GroupKind::kDenseShard),
                        .replica = add_group(l, GroupKind::kDenseReplica)}};
  if (l.job.model.has_moe_layers()) {
    place_expert_groups(l);
  }
}

bool holds(const Lowering& l, bool ModelChunk::*end) {
  for (const ChunkWeights& w : l.chunks) {
    if (w.chunk.*end) {
      return true;
    }
  }
  return false;
}

void place_inputs(Lowering& l) {
  Program& program = l.builder.program();
  const std::int64_t data_ranks = data_parallel_size(l.job, l.plan);
  const auto input = [&](const std::string& name) {
    return l.builder
        .persistent({.component = Component::kActivations,
                     .name = name,
                     .dtype = DType::kInt32,
                     .rows = l.sizes.tokens,
                     .cols = 1})
        .tensor;
  };
  for (std::int64_t m = 0; m < num_microbatches(l.job, l.plan); ++m) {
    MicrobatchInputs inputs{.first_sequence = (m * data_ranks + l.at.dp) * l.plan.micro_batch};
    if (holds(l, &ModelChunk::has_embedding)) {
      inputs.ids = input("token_ids");
    }
    if (holds(l, &ModelChunk::has_head)) {
      inputs.targets = input("labels");
    }
    program.inputs.push_back(inputs);
  }
  for (std::int64_t sequence = 0; sequence < l.plan.micro_batch; ++sequence) {
    for (TokenRun run : runs_of_sequence(l.job, l.plan, l.at.cp)) {
      run.sequence = sequence;
      program.token_order.push_back(run);
    }
  }
}

void place_scalars(Lowering& l) {
  const auto scalar = [&](const std::string& name, std::int64_t cols) {
    TensorSpec spec = statistics(name, 1, cols);
    spec.component = Component::kOptimizer;
    return l.builder.persistent(spec);
  };
  l.schedule = scalar("step_and_learning_rate", 2);
  l.clip = scalar("clip_factor", 2);
  l.builder.program().schedule_tensor = l.schedule.tensor;
  l.builder.program().clip = l.clip.tensor;
  if (holds(l, &ModelChunk::has_head)) {
    l.loss = scalar("loss", 1);
    l.builder.program().loss = l.loss.tensor;
  }
  if (std::ranges::any_of(l.chunks, [](const ChunkWeights& w) {
        return std::ranges::any_of(w.buffers, &FlatBuffer::is_expert);
      })) {
    l.aux_loss = scalar("aux_loss", 1);
    l.required_rows = scalar("required_expert_rows", 1);
    l.builder.program().aux_loss = l.aux_loss.tensor;
    l.builder.program().expert_bound = {.required = l.required_rows.tensor,
                                        .rows = l.sizes.received_rows,
                                        .even_rows = l.sizes.even_rows};
  }
}

// Sines and cosines of every position, written once; the host backend computes them instead.
void place_rotary_table(Lowering& l) {
  l.builder.persistent({.component = Component::kWorkspace,
                        .name = "rotary_table",
                        .dtype = DType::kFp32,
                        .rows = l.job.sequence_length,
                        .cols = l.sizes.head_dim});
}

// What kernels use while they run; all of them run on the compute stream, one after another. The
// CUDA backend refuses a program whose kernels need more; the host backend needs none.
void place_scratch(Lowering& l) {
  const auto scratch = [&](const std::string& name, std::int64_t words) {
    TensorSpec spec = statistics(name, 1, words);
    spec.component = Component::kWorkspace;
    l.builder.persistent(spec);
  };
  scratch("product_workspace", 32 * kMiB / bytes_of(DType::kFp32));
  // Norms: 132 partial sums of their weight's gradient (kernels/pointwise/rms_norm.h), twice that
  // here. Embedding: a stable sort, of 5.5 words a token and some for every tile of them.
  // Attention: what a forward call needs. The first 64 words are what ranks that exchange rows of
  // experts, or copy into each other's memory, meet on.
  const std::int64_t keys = l.sizes.tokens * std::max<std::int64_t>(1, l.sizes.choices);
  scratch("kernel_scratch", 64 + std::max(264 * l.sizes.hidden, 8 * keys));
}

// Outputs that go to another stage, and gradients that come from there.
void place_cells(Lowering& l) {
  const TensorSpec residual = temporary("residual", l.sizes.rows, l.sizes.hidden);
  const bool sends =
      std::ranges::any_of(l.chunks, [](const ChunkWeights& w) { return !w.chunk.has_head; });
  // Gradients that arrive are updated in place; a split backward leaves those in the slot of their
  // microbatch and writes what it sends.
  const bool uses_gradients = l.splits_backward() ? !l.chunks.front().chunk.has_embedding : sends;
  for (std::int64_t i = 0; i < 2; ++i) {
    if (uses_gradients) {
      l.gradient_cells.push_back(l.builder.fixed_cell(padded_bytes(residual)));
    }
    if (sends) {
      l.output_cells.push_back(l.builder.fixed_cell(padded_bytes(residual)));
    }
  }
}

// Gradients that wait for another stage come last, so that no rank waits for a stage that still
// needs it.
void run_schedule(Lowering& l) {
  for (const ScheduleAction& action : schedule_actions(schedule_shape(l.job, l.plan), l.at.pp)) {
    switch (action.kind) {
      case ActionKind::kForward: chunk_forward(l, action.chunk, action.microbatch); break;
      case ActionKind::kBackwardInput:
      case ActionKind::kBackward: chunk_backward(l, action.chunk, action.microbatch); break;
      case ActionKind::kBackwardWeight: chunk_weights(l, action.chunk, action.microbatch); break;
    }
  }
  for (std::size_t c = 0; c < l.chunks.size(); ++c) {
    l.chunk = static_cast<std::int64_t>(c);
    reduce_tied_gradients(l, l.chunks[c]);
  }
}

}  // namespace

std::optional<std::string> why_not_lowered(const Job& job, const Plan& plan) {
  if (auto reason = model_not_lowered(job.model)) {
    return reason;
  }
  if (!is_lowered(plan.schedule)) {
    return "plan.schedule: " + std::string(name_of(plan.schedule));
  }
  if (plan.cp > 1 && plan.cp_method == CpMethod::kA2a) {
    return "plan.cp_method: " + std::string(name_of(plan.cp_method));
  }
  if (plan.precision != Precision::kBf16 && plan.precision != Precision::kFp8) {
    return "plan.precision: " + std::string(name_of(plan.precision));
  }
  if (job.model.num_kv_heads % plan.tp != 0) {
    return "plan.tp: " + number(plan.tp) + " with num_kv_heads " + number(job.model.num_kv_heads);
  }
  return recompute_not_lowered(plan.recompute);
}

Program lower(const Job& job, const Plan& plan, std::int64_t rank,
              const Hyperparameters& hyperparameters) {
  ProgramBuilder builder;
  return lower_with(builder, job, plan, rank, hyperparameters);
}

std::vector<Program> lower_all(const Job& job, const Plan& plan,
                               const Hyperparameters& hyperparameters) {
  std::vector<Program> programs;
  for (std::int64_t rank = 0; rank < job.cluster.world_size(); ++rank) {
    programs.push_back(lower(job, plan, rank, hyperparameters));
  }
  return programs;
}

Program lower_with(ProgramBuilder& builder, const Job& job, const Plan& plan, std::int64_t rank,
                   const Hyperparameters& hyperparameters) {
  if (const auto reason = why_not_lowered(job, plan)) {
    throw std::logic_error("lower: not lowered: " + *reason);
  }
  const RankCoordinates at = coordinates_of(job, plan, rank);
  Lowering l{.job = job,
             .plan = plan,
             .hyperparameters = hyperparameters,
             .at = at,
             .sizes = local_sizes(job, plan, at),
             .groups = {},
             .builder = builder};
  builder.program().rank = rank;
  place_groups(l);
  place_weights(l);
  place_inputs(l);
  place_scalars(l);
  place_rotary_table(l);
  place_scratch(l);
  place_fp8_operands(l);
  place_cells(l);
  place_unit_cells(l);
  place_token_cells(l);
  run_schedule(l);
  update_weights(l);
  return l.builder.finish();
}

}  // namespace shardplan
