#include "tests/validator/layouts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "validator/check/operations.h"

namespace shardplan {

ModelSpec tiny_model() {
  ModelSpec model;
  model.name = "tiny";
  model.hidden = 16;
  model.ffn = 24;
  model.vocab = 29;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 4;
  model.layers.resize(4);
  return model;
}

ModelSpec wide_model() {
  ModelSpec model = tiny_model();
  model.name = "wide";
  model.num_heads = 8;
  model.num_kv_heads = 8;
  model.layers = {{}, {.is_moe = false, .attention_window = 5}, {}, {}};
  return model;
}

ModelSpec tiny_moe() {
  ModelSpec model = tiny_model();
  model.name = "tiny moe";
  model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 8, .shared_ffn = 12};
  model.layers = {{}, {.is_moe = true}, {.is_moe = true}, {}};
  return model;
}

ModelSpec wide_moe() {
  ModelSpec model = wide_model();
  model.name = "wide moe";
  model.moe = {.num_experts = 4, .topk = 3, .expert_ffn = 8};
  for (LayerSpec& layer : model.layers) { layer.is_moe = true; }
  return model;
}

Job tiny_job(const ModelSpec& model, std::int64_t world) {
  Job job;
  job.model = model;
  job.cluster.gpus_per_node = world;
  job.cluster.nodes = 1;
  job.profile.name = "native";
  set_framework(job.profile, MemoryModel::kNative);
  job.profile.allocator = AllocatorKind::kStaticArenas;
  job.profile.cross_entropy = CrossEntropyKind::kChunked;
  job.profile.cross_entropy_chunks = 3;          // does not divide the tokens
  job.profile.tensor_parallel_chunk_tokens = 5;  // nor does this
  job.profile.vocab_multiple = 2;
  job.sequence_length = 16;
  job.global_batch = 8;
  return job;
}

Batch random_batch(const Job& job, std::uint64_t seed) {
  Batch batch{.sequence_length = job.sequence_length, .tokens = {}, .targets = {}};
  const auto draw = [&](const std::string& what, std::int64_t i) {
    const double uniform = initial_value(what, i, seed) / 0.4 + 0.5;
    return std::min(job.model.vocab - 1,
                    static_cast<std::int64_t>(uniform * static_cast<double>(job.model.vocab)));
  };
  for (std::int64_t i = 0; i < job.global_batch * job.sequence_length; ++i) {
    batch.tokens.push_back(draw("tokens", i));
    batch.targets.push_back(draw("targets", i));
  }
  return batch;
}

StepResult run_step(const Job& job, const Plan& plan, const Batch& batch) {
  HostBackend<double> backend(lower_all(job, plan), DeadMemory::kPoisoned);
  backend.load(initial_tensors(job.model, 7));
  StepResult result;
  result.loss = backend.step(batch, 1e-3);
  result.gradients = backend.gradients();
  return result;
}

double worst_relative_difference(const Tensors& a, const Tensors& b) {
  double worst = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (const auto& [name, expected] : b) {
    if (!a.contains(name) || a.at(name).values.size() != expected.values.size()) {
      return std::numeric_limits<double>::infinity();
    }
    double difference = 0;
    double largest = 0;
    for (std::size_t i = 0; i < expected.values.size(); ++i) {
      const double apart = std::abs(a.at(name).values[i] - expected.values[i]);
      difference = apart <= difference ? difference : apart;  // NaN counts as apart
      largest = std::max(largest, std::abs(expected.values[i]));
    }
    const double relative = difference / largest;
    worst = relative <= worst ? worst : relative;
  }
  return worst;
}

bool bitwise_equal(const Tensors& a, const Tensors& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.values == y.second.values;
  });
}

std::int64_t num_needless_lifetimes(Program program) {
  std::int64_t needless = 0;
  for (Tensor& tensor : program.tensors) {
    const bool stands = tensor.name == "exchanged_tokens" || tensor.name == "gathered_inputs";
    if (tensor.arena == Arena::kPersistent || stands) {
      continue;
    }
    ++tensor.born;
    needless += operation_problems(program).empty() ? 1 : 0;
    --tensor.born;
    --tensor.dies;
    needless += operation_problems(program).empty() ? 1 : 0;
    ++tensor.dies;
  }
  return needless;
}

std::string text_of(const Plan& plan) {
  std::string text;
  const auto word = [&](std::string_view what) { text.append(" ").append(what); };
  const auto field = [&](const std::string& name, std::int64_t value) {
    word(name + std::to_string(value));
  };
  field("tp", plan.tp);
  if (plan.sequence_parallel) {
    word("sp");
  }
  field("cp", plan.cp);
  if (plan.cp > 1) {
    word(name_of(plan.cp_method));
  }
  field("ep", plan.ep);
  field("etp", plan.etp);
  field("pp", plan.pp);
  field("vpp", plan.vpp);
  word(name_of(plan.schedule));
  field("dp", plan.dp);
  field("replicate", plan.dp_replicate);
  field("zero", plan.zero);
  field("micro_batch", plan.micro_batch);
  word(name_of(plan.grad_dtype));
  word(name_of(plan.exp_avg_dtype));
  word("recompute");
  word(name_of(plan.recompute.granularity));
  word(name_of(plan.recompute.method));
  field("layers", plan.recompute.num_layers);
  for (const auto& module : kRecomputeModules) {
    if (plan.recompute.modules.*module.value) {
      word(module.name);
    }
  }
  return text;
}

}  // namespace shardplan
