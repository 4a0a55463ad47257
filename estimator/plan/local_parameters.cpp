// Parameters of one rank: tensor widths divided over tp, ep and etp, layers over the stages.
#include <algorithm>

#include "estimator/plan/layer_partition.h"
#include "estimator/plan/parameters.h"

namespace shardplan {
namespace {

void add_tensors(LocalParameters& local, const Job& job, const Plan& plan,
                 const std::vector<ParameterTensor>& tensors, std::int64_t copies) {
  for (const ParameterTensor& tensor : tensors) {
    const std::int64_t elements = copies * local_elements(job, plan, tensor);
    (tensor.sharding == Sharding::kExpert ? local.expert : local.dense) += elements;
    local.linear += is_dense_linear(tensor) ? elements : 0;
  }
}

// What one pipeline rank holds.
struct StageContents {
  std::vector<std::int64_t> layers;  // how many of each kind (parameter_kinds)
  bool has_embedding = false;
  bool has_head = false;
};

StageContents contents_of(const Job& job, const Plan& plan, std::int64_t pp_rank,
                          const ParameterKinds& kinds) {
  StageContents stage;
  stage.layers.resize(kinds.kinds.size());
  for (const ModelChunk& chunk : partition_layers(job, plan).chunks) {
    if (chunk.pp_rank != pp_rank) {
      continue;
    }
    for (std::int64_t i = 0; i < chunk.num_layers; ++i) {
      ++stage.layers[kinds.of_layer[static_cast<std::size_t>(chunk.first_layer + i)]];
    }
    stage.has_embedding = stage.has_embedding || chunk.has_embedding;
    stage.has_head = stage.has_head || chunk.has_head;
  }
  return stage;
}

}  // namespace

std::int64_t local_elements(const Job& job, const Plan& plan, const ParameterTensor& tensor) {
  if (job.profile.layout.router_bias_is_buffer && tensor.name == "router_bias") {
    return 0;
  }
  switch (tensor.sharding) {
    case Sharding::kReplicated: return tensor.elements;
    case Sharding::kExpert: return div_exact(tensor.elements, plan.ep * plan.etp);
    case Sharding::kVocab:
      return div_exact(tensor.elements, job.model.vocab) *
             div_exact(padded_vocab(job, plan), plan.tp);
    case Sharding::kTp: break;
  }
  // With fewer kv heads than tp ranks each rank holds one whole head, so that tp / k ranks have the
  // same one, but where the fused weight is cut evenly.
  if (job.profile.layout.cuts_fused_qkv_evenly) {
    return div_exact(tensor.elements, plan.tp);
  }
  return div_exact(tensor.elements - tensor.kv_elements, plan.tp) +
         div_exact(tensor.kv_elements, std::min(plan.tp, job.model.num_kv_heads));
}

std::int64_t local_elements(const Job& job, const Plan& plan,
                            const std::vector<ParameterTensor>& tensors) {
  std::int64_t elements = 0;
  for (const ParameterTensor& tensor : tensors) { elements += local_elements(job, plan, tensor); }
  return elements;
}

LocalParameters local_parameters(const Job& job, const Plan& plan, std::int64_t pp_rank) {
  const ModelSpec& model = job.model;
  const ParameterKinds kinds = parameter_kinds(model);
  const StageContents stage = contents_of(job, plan, pp_rank, kinds);
  LocalParameters local;
  for (std::size_t kind = 0; kind < kinds.kinds.size(); ++kind) {
    if (stage.layers[kind] > 0) {
      add_tensors(local, job, plan, layer_parameters(model, kinds.kinds[kind]), stage.layers[kind]);
    }
  }
  // Megatron-LM core/models/gpt/gpt_model.py: the stage with MTP modules embeds tokens as well.
  const bool head_reads_table = model.tied_embeddings || model.num_mtp_layers > 0;
  if (stage.has_embedding) {
    add_tensors(local, job, plan, embedding_parameters(model), 1);
  } else if (stage.has_head && head_reads_table) {
    add_tensors(local, job, plan, table_parameters(model), 1);
  }
  if (stage.has_head) {
    add_tensors(local, job, plan, head_parameters(model), 1);
  }
  if (stage.has_head && model.num_mtp_layers > 0) {
    add_tensors(local, job, plan, mtp_parameters(model), model.num_mtp_layers);
  }
  return local;
}

}  // namespace shardplan
