#include "data/read/case_plan.h"

#include <algorithm>
#include <array>

#include "data/read/case_line.h"
#include "data/read/case_members.h"
#include "estimator/frameworks/framework.h"

namespace shardplan {

namespace {

DType dtype_or(ObjectReader& reader, std::string_view key, DType fallback) {
  const std::string word = reader.string_or(key, std::string(name_of(fallback)));
  if (const std::optional<DType> dtype = dtype_named(word)) {
    return *dtype;
  }
  throw reader.error(key, "found \"" + shown(word, Encoding::kUtf8) +
                              "\", expected a dtype: fp32, bf16, fp16 or fp8");
}

RecomputeModules read_modules(ObjectReader& reader) {
  RecomputeModules modules;
  for (const std::string& word : reader.strings("modules")) {
    const auto* const row =
        std::ranges::find(kRecomputeModules, word, [](const auto& named) { return named.name; });
    if (row == kRecomputeModules.end()) {
      const std::vector<std::string> names = words_of(kRecomputeModules);
      throw reader.error("modules", "found \"" + shown(word, Encoding::kUtf8) +
                                        "\", expected some of " + joined(names) +
                                        suggestion(word, names));
    }
    modules.*(row->value) = true;
  }
  return modules;
}

Recompute read_recompute(const JsonValue& value, const std::string& file) {
  ObjectReader reader(value, file);
  Recompute recompute;
  recompute.granularity = choice<RecomputeGranularity>(reader, "granularity");
  if (recompute.granularity == RecomputeGranularity::kFull) {
    recompute.method = choice_or(reader, "method", recompute.method);
    recompute.num_layers = reader.integer_or("num_layers", recompute.num_layers, 1, kMaxDegree);
  }
  if (recompute.granularity == RecomputeGranularity::kSelective) {
    if (is_given(reader, "modules") == is_given(reader, "policy")) {
      throw reader.error("",
                         "found granularity selective with both or neither of \"modules\" and "
                         "\"policy\", expected one of them");
    }
    if (is_given(reader, "modules")) {
      recompute.modules = read_modules(reader);
    }
    recompute.policy = reader.string_or("policy", "");
    reader.ignore("modules");
  }
  reader.finish();
  return recompute;
}

Offload read_offload(const JsonValue& value, const std::string& file) {
  ObjectReader reader(value, file);
  Offload offload;
  offload.optimizer = reader.number_or("optimizer", offload.optimizer, 0, 1);
  offload.activations = reader.boolean_or("activations", offload.activations);
  offload.parameters = reader.boolean_or("parameters", offload.parameters);
  reader.finish();
  return offload;
}

std::vector<std::int64_t> read_layers_per_chunk(const JsonValue& value, const std::string& file) {
  std::vector<std::int64_t> layers;
  for (const JsonValue& item : value.items) {
    if (item.kind != JsonKind::kInteger || item.integer < 0 || item.integer > kMaxDegree) {
      throw InputError(place_of(item, file) + "found " + describe(item) +
                       ", expected an integer from 0 to " + std::to_string(kMaxDegree));
    }
    layers.push_back(item.integer);
  }
  if (value.kind != JsonKind::kArray) {
    throw InputError(place_of(value, file) + "found " + describe(value) +
                     ", expected an array of layer counts");
  }
  return layers;
}

// "pp-dp-cp-tp", slowest to fastest.
RankOrder read_rank_order(ObjectReader& reader) {
  const std::string text = reader.string("rank_order");
  RankOrder order{};
  std::size_t num_found = 0;
  std::size_t at = 0;
  while (at <= text.size() && num_found < order.size()) {
    const std::size_t dash = std::min(text.find('-', at), text.size());
    const std::optional<Dimension> dimension = value_of<Dimension>(text.substr(at, dash - at));
    const Dimension* const seen_end = order.data() + num_found;
    if (!dimension || std::find<const Dimension*>(order.data(), seen_end, *dimension) != seen_end) {
      break;
    }
    order[num_found++] = *dimension;
    at = dash + 1;
  }
  if (num_found != order.size() || at != text.size() + 1) {
    throw reader.error("rank_order", "found \"" + shown(text, Encoding::kUtf8) +
                                         "\", expected pp, dp, cp and tp once each, slowest to "
                                         "fastest, as in pp-dp-cp-tp");
  }
  return order;
}

void read_degrees(ObjectReader& reader, Plan& plan) {
  const auto degree = [&](std::string_view key, std::int64_t& field) {
    field = reader.integer_or(key, field, 1, kMaxDegree);
  };
  degree("tp", plan.tp);
  degree("cp", plan.cp);
  degree("ep", plan.ep);
  degree("etp", plan.etp);
  degree("pp", plan.pp);
  degree("vpp", plan.vpp);
  degree("dp", plan.dp);
  degree("dp_replicate", plan.dp_replicate);
  plan.zero = reader.integer_or("zero", plan.zero, 0, 3);
}

}  // namespace

void read_plan(const JsonValue& value, const std::string& file, Plan& plan,
               std::vector<std::string>& given) {
  ObjectReader reader(value, file);
  for (const auto& [name, member] : value.members) {
    if (member.kind != JsonKind::kNull) {
      given.push_back(name);
    }
  }
  read_degrees(reader, plan);
  plan.sequence_parallel = reader.boolean_or("sequence_parallel", plan.sequence_parallel);
  plan.schedule = choice_or(reader, "schedule", plan.schedule);
  plan.cp_method = choice_or(reader, "cp_method", plan.cp_method);
  plan.grad_dtype = dtype_or(reader, "grad_dtype", plan.grad_dtype);
  plan.master_dtype = dtype_or(reader, "master_dtype", plan.master_dtype);
  plan.exp_avg_dtype = dtype_or(reader, "exp_avg_dtype", plan.exp_avg_dtype);
  plan.exp_avg_sq_dtype = dtype_or(reader, "exp_avg_sq_dtype", plan.exp_avg_sq_dtype);
  plan.moe_buffer_factor =
      reader.number_or("moe_buffer_factor", plan.moe_buffer_factor, 0.01, 1024);
  if (is_given(reader, "recompute")) {
    plan.recompute = read_recompute(reader.value("recompute"), file);
  }
  if (is_given(reader, "offload")) {
    plan.offload = read_offload(reader.value("offload"), file);
  }
  if (is_given(reader, "layers_per_chunk")) {
    plan.layers_per_chunk = read_layers_per_chunk(reader.value("layers_per_chunk"), file);
  }
  if (is_given(reader, "rank_order")) {
    plan.rank_order = read_rank_order(reader);
  }
  for (const char* key : {"recompute", "offload", "layers_per_chunk", "rank_order"}) {
    reader.ignore(key);  // null is the default
  }
  reader.finish();
}

Plan with_profile_defaults(const Job& job, Plan plan, const std::vector<std::string>& given) {
  const FrameworkProfile& profile = job.profile;
  const auto is_absent = [&](std::string_view name) {
    return std::ranges::find(given, name) == given.end();
  };
  // torchtitan has nothing to shard over on one GPU.
  const bool is_titan = profile.memory_model == MemoryModel::kTorchtitan;
  if (is_absent("zero")) {
    const bool shards_nothing = uses_muon(job) || (is_titan && job.cluster.world_size() == 1);
    plan.zero = shards_nothing ? 0 : profile.default_zero;
  }
  if (is_absent("sequence_parallel")) {
    plan.sequence_parallel = plan.tp > 1 && profile.default_sequence_parallel;
  }
  if (is_absent("schedule")) {
    const Schedule staged =
        plan.vpp > 1 ? Schedule::kInterleaved1F1B : profile.default_pipeline_schedule;
    plan.schedule = plan.pp > 1 ? staged : Schedule::kNone;
  }
  if (is_absent("grad_dtype")) {
    plan.grad_dtype = profile.default_grad_dtype;
  }
  if (is_absent("cp_method")) {
    plan.cp_method = profile.default_cp_method;
  }
  // Megatron-core's is tp (core/model_parallel_config.py); ours is 1 where ep divides them.
  // torchtitan's without ep is tp (models/llama4/infra/parallelize.py, apply_moe_ep_tp).
  if (is_absent("etp") && (is_megatron(profile.memory_model) || is_titan) &&
      job.model.moe.num_experts > 0 && plan.ep == 1) {
    plan.etp = plan.tp;
  }
  if (is_absent("recompute") && profile.default_recompute == DefaultRecompute::kEverySecondLayer) {
    plan.recompute = {.granularity = RecomputeGranularity::kSelective,
                      .policy = "every_second_layer"};
  }
  return plan;
}

}  // namespace shardplan
