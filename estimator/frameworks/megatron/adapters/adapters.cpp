#include "estimator/frameworks/megatron/adapters/adapters.h"

#include <algorithm>

#include "estimator/frameworks/pieces/seen_by_layer.h"
#include "estimator/ledger/layer_blocks.h"
#include "estimator/ledger/padded_buffer.h"
#include "estimator/plan/number.h"

namespace shardplan::megatron {
namespace {

// The pair of linear layers of a feed-forward part, each rank's width of it.
struct FfnPlaces {
  AdapterPlace fc1 = AdapterPlace::kFc1;
  AdapterPlace fc2 = AdapterPlace::kFc2;
  std::int64_t width = 0;
  std::int64_t count = 1;
};

void add_ffn(std::vector<AdapterShape>& adapters, const Job& job, const FfnPlaces& places) {
  const std::int64_t hidden = job.model.hidden;
  const std::int64_t pieces = job.model.gated_ffn ? 2 : 1;
  if (places.width > 0 && adapts_fc1(job)) {
    adapters.push_back({.place = places.fc1,
                        .inputs = hidden,
                        .outputs = pieces * places.width,
                        .count = places.count});
  }
  if (places.width > 0 && adapts_fc2(job)) {
    adapters.push_back(
        {.place = places.fc2, .inputs = places.width, .outputs = hidden, .count = places.count});
  }
}

// Attention makes the projection before the packed product (core/transformer/attention.py), in
// which a gate is as wide as the queries. A packed product of fewer heads of keys than ranks is cut
// into as many equal parts (layout.h).
void add_attention(std::vector<AdapterShape>& adapters, const Job& job, const Plan& plan) {
  const ModelSpec& model = job.model;
  const std::int64_t gates = model.attention_gate == AttentionGate::kPerElement ? 2 : 1;
  const std::int64_t query = div_ceil(model.num_heads, plan.tp) * model.head_dim;
  const std::int64_t packed =
      model.num_kv_heads % plan.tp == 0
          ? gates * query + 2 * model.num_kv_heads / plan.tp * model.head_dim
          : div_ceil((gates * model.num_heads + 2 * model.num_kv_heads) * model.head_dim, plan.tp);
  if (adapts_projection(job)) {
    adapters.push_back(
        {.place = AdapterPlace::kProjection, .inputs = query, .outputs = model.hidden});
  }
  if (adapts_qkv(job)) {
    adapters.push_back({.place = AdapterPlace::kQkv, .inputs = model.hidden, .outputs = packed});
  }
}

// core/transformer/multi_latent_attention.py: down-projections are whole on every rank, and of
// plain queries there is none.
void add_latent_attention(std::vector<AdapterShape>& adapters, const Job& job, const Plan& plan) {
  const MlaSpec& mla = job.model.mla;
  const std::int64_t hidden = job.model.hidden;
  const std::int64_t heads = div_ceil(job.model.num_heads, plan.tp);
  const auto add = [&](AdapterPlace place, std::int64_t inputs, std::int64_t outputs) {
    adapters.push_back({.place = place, .inputs = inputs, .outputs = outputs});
  };
  if (adapts_projection(job)) {
    add(AdapterPlace::kProjection, heads * mla.v_head_dim, hidden);
  }
  if (!adapts_qkv(job)) {
    return;
  }
  if (mla.q_lora_rank > 0) {
    add(AdapterPlace::kQueryDown, hidden, mla.q_lora_rank);
  }
  add(AdapterPlace::kQueryUp, mla.q_lora_rank > 0 ? mla.q_lora_rank : hidden,
      heads * mla.qk_head_dim());
  add(AdapterPlace::kKeyValueDown, hidden, mla.kv_lora_rank + mla.qk_rope_head_dim);
  add(AdapterPlace::kKeyValueUp, mla.kv_lora_rank, heads * (mla.qk_nope_head_dim + mla.v_head_dim));
}

// in_proj makes so much, out_proj takes so much.
void add_in_and_out(std::vector<AdapterShape>& adapters, const Job& job, std::int64_t made,
                    std::int64_t taken) {
  const std::int64_t hidden = job.model.hidden;
  if (adapts_mixer_input(job)) {
    adapters.push_back({.place = AdapterPlace::kMixerInput, .inputs = hidden, .outputs = made});
  }
  if (adapts_mixer_output(job)) {
    adapters.push_back({.place = AdapterPlace::kMixerOutput, .inputs = taken, .outputs = hidden});
  }
}

// core/ssm/gated_delta_net.py: queries, keys, values, gate, decays and steps are one product;
// core/ssm/mamba_mixer.py: gate, values, both matrices and steps.
void add_mixer(std::vector<AdapterShape>& adapters, const Job& job, const Plan& plan,
               MixerKind mixer) {
  const DeltaSpec& delta = job.model.delta;
  const MambaSpec& mamba = job.model.mamba;
  switch (mixer) {
    case MixerKind::kAttention:
      return job.model.is_mla() ? add_latent_attention(adapters, job, plan)
                                : add_attention(adapters, job, plan);
    case MixerKind::kGatedDelta: {
      const std::int64_t mixed = 2 * (delta.key_width() + delta.value_width());
      const std::int64_t steps = 2 * delta.value_heads;
      const bool is_two = job.profile.decoupled_in_proj;
      add_in_and_out(adapters, job, div_ceil(is_two ? mixed : mixed + steps, plan.tp),
                     div_ceil(delta.value_width(), plan.tp));
      if (is_two && adapts_mixer_input(job)) {
        adapters.push_back({.place = AdapterPlace::kMixerSteps,
                            .inputs = job.model.hidden,
                            .outputs = div_ceil(steps, plan.tp)});
      }
      return;
    }
    case MixerKind::kMamba2:
      return add_in_and_out(
          adapters, job,
          div_ceil(2 * (mamba.inner + mamba.groups * mamba.state) + mamba.num_heads, plan.tp),
          div_ceil(mamba.inner, plan.tp));
    default: return;
  }
}

std::int64_t table_elements(const Job& job, const Plan& plan) {
  return div_exact(padded_vocab(job, plan), plan.tp) * job.model.hidden;
}

void add_block(TrainedTensors& tensors, const Job& job, const Plan& plan, BlockKind kind) {
  const std::int64_t rank = job.adapters.rank;
  for (const AdapterShape& each : adapters_of(job, plan, kind)) {
    std::vector<std::int64_t>& list = each.is_expert() ? tensors.expert : tensors.dense;
    list.insert(list.end(), static_cast<std::size_t>(each.count), rank * each.inputs);
    list.insert(list.end(), static_cast<std::size_t>(each.count), rank * each.outputs);
  }
  const bool is_table = kind == BlockKind::kEmbedding && job.adapters.trains_table;
  const bool is_head = kind == BlockKind::kHead && job.adapters.trains_head;
  if (is_table || is_head) {
    tensors.dense.push_back(table_elements(job, plan));
  }
}

std::int64_t padded_length(const std::vector<std::int64_t>& tensors, PaddedBuffer& buffer) {
  for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor) { buffer.add(*tensor); }
  return buffer.close();
}

std::int64_t sum_of(const std::vector<std::int64_t>& tensors) {
  std::int64_t sum = 0;
  for (const std::int64_t elements : tensors) { sum += elements; }
  return sum;
}

}  // namespace

bool gathers_in_front(const Job& job, const Plan& plan, const LayerSpec& layer) {
  return (trains_adapters(job) || job.profile.decoupled_in_proj) && plan.tp > 1 &&
         plan.sequence_parallel && layer.mixer == MixerKind::kGatedDelta;
}

std::vector<AdapterShape> adapters_of(const Job& job, const Plan& plan, const LayerSpec& layer) {
  std::vector<AdapterShape> adapters;
  const ModelSpec& model = job.model;
  if (!trains_adapters(job)) {
    return adapters;
  }
  add_mixer(adapters, job, plan, layer.mixer);
  if (!layer.is_moe) {
    add_ffn(adapters, job, {.width = layer.has_ffn ? div_ceil(model.ffn, plan.tp) : 0});
    return adapters;
  }
  add_ffn(adapters, job,
          {.fc1 = AdapterPlace::kExpertsFc1,
           .fc2 = AdapterPlace::kExpertsFc2,
           .width = div_ceil(model.moe.expert_ffn, plan.etp),
           .count = div_ceil(model.moe.num_experts, plan.ep)});
  add_ffn(adapters, job,
          {.fc1 = AdapterPlace::kSharedFc1,
           .fc2 = AdapterPlace::kSharedFc2,
           .width = div_ceil(model.moe.shared_ffn, plan.tp)});
  return adapters;
}

std::vector<AdapterShape> adapters_of(const Job& job, const Plan& plan, BlockKind kind) {
  if (!trains_adapters(job) || !is_layer(kind)) {
    return {};
  }
  std::vector<AdapterShape> adapters;
  if (kind == BlockKind::kMtp && adapts_prediction(job)) {
    adapters.push_back({.place = AdapterPlace::kPrediction,
                        .inputs = 2 * job.model.hidden,
                        .outputs = div_ceil(job.model.hidden, plan.tp)});
  }
  const std::vector<AdapterShape> of_layer = adapters_of(job, plan, layer_of(job, kind));
  adapters.insert(adapters.end(), of_layer.begin(), of_layer.end());
  return adapters;
}

TrainedTensors trained_tensors(const Job& job, const Plan& plan, const ChunkLayout& chunk) {
  TrainedTensors tensors;
  for (const Unit& unit : chunk.units) {
    for (std::int64_t i = 0; i < unit.count; ++i) {
      for (const BlockRun& run : unit.blocks) {
        for (std::int64_t at = 0; at < run.count; ++at) { add_block(tensors, job, plan, run.kind); }
      }
    }
  }
  if (chunk.has_embedding_copy) {
    add_block(tensors, job, plan, BlockKind::kEmbedding);
  }
  return tensors;
}

StageTensors trained_stage(const Job& job, const Plan& plan, const StageLayout& stage,
                           const ContiguousBuffers& cut) {
  StageTensors trained;
  for (std::size_t chunk = 0; chunk < stage.chunks.size(); ++chunk) {
    const TrainedTensors tensors = trained_tensors(job, plan, stage.chunks[chunk]);
    const bool has_buckets = stage.pp_rank == 0 && chunk == 0;
    PaddedBuffer dense(dense_shard_size(job, plan), has_buckets ? cut.dense_bucket : 0);
    PaddedBuffer expert(expert_state_shards(job, plan), has_buckets ? cut.expert_bucket : 0);
    trained.chunks.push_back({.dense = padded_length(tensors.dense, dense),
                              .expert = padded_length(tensors.expert, expert)});
    const std::int64_t dense_elements = sum_of(tensors.dense);
    const std::int64_t expert_elements = sum_of(tensors.expert);
    trained.dense += dense_elements;
    trained.expert += expert_elements;
    trained.dense_padding += dense.padding();
    trained.expert_padding += expert.padding();
    trained.largest_chunk = std::max(trained.largest_chunk, dense_elements + expert_elements);
    for (const std::int64_t elements : tensors.dense) {
      trained.largest_dense_tensor = std::max(trained.largest_dense_tensor, elements);
    }
  }
  return trained;
}

std::vector<WeightShape> updated_weight_shapes(const Job& job, const Plan& plan, BlockKind kind) {
  if (!trains_adapters(job)) {
    return weight_shapes(job, plan, kind);
  }
  const std::int64_t rank = job.adapters.rank;
  std::vector<WeightShape> shapes;
  for (const AdapterShape& each : adapters_of(job, plan, kind)) {
    shapes.push_back({.rows = rank, .columns = each.inputs, .count = each.count});
    shapes.push_back({.rows = each.outputs, .columns = rank, .count = each.count});
  }
  if (kind == BlockKind::kHead && job.adapters.trains_head) {
    const std::vector<WeightShape> head = weight_shapes(job, plan, kind);
    shapes.insert(shapes.end(), head.begin(), head.end());
  }
  return shapes;
}

double trained_share(const Job& job) {
  if (!trains_adapters(job)) {
    return 1;
  }
  const Plan whole;
  const std::int64_t rank = job.adapters.rank;
  const auto sum = [rank](const std::vector<AdapterShape>& adapters) {
    std::int64_t elements = 0;
    for (const AdapterShape& each : adapters) {
      elements += each.count * rank * (each.inputs + each.outputs);
    }
    return elements;
  };
  std::int64_t trained = 0;
  if (job.model.num_mtp_layers > 0) {
    trained = job.model.num_mtp_layers * sum(adapters_of(job, whole, BlockKind::kMtp));
  }
  const ParameterKinds kinds = parameter_kinds(job.model);
  for (std::size_t kind = 0; kind < kinds.kinds.size(); ++kind) {
    trained +=
        std::ranges::count(kinds.of_layer, kind) * sum(adapters_of(job, whole, kinds.kinds[kind]));
  }
  const std::int64_t table = job.model.vocab * job.model.hidden;
  trained += (job.adapters.trains_table ? table : 0) + (job.adapters.trains_head ? table : 0);
  return number(trained) / number(count_parameters(job.model) + count_mtp_parameters(job.model));
}

}  // namespace shardplan::megatron
