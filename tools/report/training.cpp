#include "tools/report/training.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/bench/training_table.h"
#include "tools/report/values.h"
#include "tools/report/version.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kLayers = 32;
constexpr std::int64_t kFewLayers = 16;  // where the states of one GPU's share are larger

Json llama(std::int64_t layers) {
  return {{"model_type", "llama"},      {"hidden_size", 4096},
          {"intermediate_size", 14336}, {"num_hidden_layers", layers},
          {"num_attention_heads", 32},  {"num_key_value_heads", 8},
          {"vocab_size", 128256},       {"tie_word_embeddings", false},
          {"rms_norm_eps", 1e-05},      {"rope_theta", 500000.0}};
}

Json mixtral(std::int64_t layers) {
  Json model = llama(layers);
  model["model_type"] = "mixtral";
  model["vocab_size"] = 32000;
  model["rope_theta"] = 1000000.0;
  model["num_local_experts"] = 8;
  model["num_experts_per_tok"] = 2;
  return model;
}

struct Batch {
  std::int64_t micro_batch = 1;
  std::int64_t num_microbatches = 1;
};

class CaseWriter {
 public:
  CaseWriter(std::int64_t num_gpus, const std::string& gpu)
      : num_gpus_(num_gpus), gpu_(gpu), layers_(num_gpus == 8 ? kLayers : kFewLayers) {}

  std::int64_t layers() const { return layers_; }
  void add(const std::string& name, const Batch& batch, const Json& plan, const SpeedGoal& goal) {
    add("llama3-8b " + std::to_string(layers_) + " layers, " + name, llama(layers_), batch, plan,
        goal);
  }
  // Routers without training choose experts unevenly: a rank has room for as many times its share.
  // The same with choices in turn says what of the step was waiting for the rank with more rows.
  void add_experts(std::int64_t layers, double room) {
    const std::string name =
        "mixtral " + std::to_string(layers) + " layers, ep " + std::to_string(num_gpus_);
    Json plan = {{"ep", num_gpus_}, {"dp", num_gpus_}, {"zero", 1}, {"moe_buffer_factor", room}};
    add(name, mixtral(layers), {.micro_batch = 2}, plan, {});
    plan.erase("moe_buffer_factor");
    add(name + ", in turn", mixtral(layers), {.micro_batch = 2}, plan, {},
        {{"moe_router_force_load_balancing", true}});
  }
  std::vector<TrainingCase> cases() && { return std::move(cases_); }

 private:
  void add(const std::string& id, Json model, const Batch& batch, const Json& plan,
           const SpeedGoal& goal, const Json& options = Json::object()) {
    Json whole = {{"tp", 1}, {"pp", 1}, {"cp", 1}, {"dp", 1}, {"zero", 0}};
    whole["recompute"] = {{"granularity", "none"}};
    whole.update(plan);
    Json line = {{"schema", 1},
                 {"id", std::to_string(num_gpus_) + " GPU: " + id},
                 {"framework", "native"},
                 {"model", std::move(model)},
                 {"cluster", {{"gpu", gpu_}, {"gpus_per_node", num_gpus_}, {"nodes", 1}}},
                 {"training",
                  {{"sequence_length", 8192},
                   {"micro_batch", batch.micro_batch},
                   {"num_microbatches", batch.num_microbatches},
                   {"precision", "bf16"}}},
                 {"plan", std::move(whole)},
                 {"options", {{"cross_entropy_chunks", 4}}}};
    line["options"].update(options);
    cases_.push_back({.line = line.dump(), .goal = goal});
  }

  std::int64_t num_gpus_;
  std::string gpu_;
  std::int64_t layers_;
  std::vector<TrainingCase> cases_;
};

std::string words(const std::string& dimension, std::int64_t size, std::int64_t dp) {
  return dimension + " " + std::to_string(size) + (dp > 1 ? ", dp " + std::to_string(dp) : "");
}

// The head takes as long as about two and a half layers, so the last stage has fewer.
Json layers_of_stages(std::int64_t layers, std::int64_t stages) {
  if (layers == kFewLayers) {
    return stages == 2 ? Json{9, 7} : Json{5, 4, 4, 3};
  }
  return stages == 2 ? Json{17, 15} : stages == 4 ? Json{9, 9, 8, 6} : Json{5, 5, 4, 4, 4, 4, 4, 2};
}

void add_data_parallel(CaseWriter& writer, std::int64_t gpus) {
  const std::string dp = "dp " + std::to_string(gpus);
  const Json plan = {{"dp", gpus}, {"zero", 1}};
  const bool has_goals = gpus == 8;
  writer.add(dp + ", 4 x 2 sequences", {.micro_batch = 2, .num_microbatches = 4}, plan,
             has_goals ? SpeedGoal{10488, 11600, 12800} : SpeedGoal{});
  writer.add(dp + ", 1 x 2 sequences", {.micro_batch = 2}, plan,
             has_goals ? SpeedGoal{10289, 11300, 12300} : SpeedGoal{});
}

// Every GPU has as many tokens whatever the size.
void add_tensor_parallel(CaseWriter& writer, std::int64_t gpus, std::int64_t size) {
  const std::int64_t dp = gpus / size;
  Json plan = {{"tp", size}, {"sequence_parallel", true}, {"dp", dp}, {"zero", dp > 1 ? 1 : 0}};
  const bool has_goals = gpus == 8 && size == 2;
  writer.add(words("tp", size, dp), {.micro_batch = size}, plan,
             has_goals ? SpeedGoal{8235, 10600, 11500} : SpeedGoal{});
  if (has_goals) {
    // The baseline's choice by operator, every second product and all that is cheap, replays more
    // than the first and less than the second.
    for (const char* module : {"core_attn", "mlp"}) {
      plan["recompute"] = {{"granularity", "selective"}, {"modules", {"layernorm", module}}};
      writer.add(words("tp", size, dp) + ", recompute norms and " + module, {.micro_batch = size},
                 plan, SpeedGoal{8235, 9500, 9500});
    }
  }
}

void add_others(CaseWriter& writer, std::int64_t gpus, std::int64_t size) {
  const std::int64_t dp = gpus / size;
  writer.add(words("cp", size, dp), {.micro_batch = 2 * size},
             {{"cp", size}, {"cp_method", "all_gather"}, {"dp", dp}, {"zero", 1}}, {});
  writer.add(words("pp", size, dp), {.num_microbatches = 4 * size},
             {{"pp", size},
              {"schedule", "zb_h1"},
              {"layers_per_chunk", layers_of_stages(writer.layers(), size)},
              {"dp", dp},
              {"zero", dp > 1 ? 1 : 0}},
             {});
}

}  // namespace

std::vector<TrainingCase> training_cases(std::int64_t num_gpus, const std::string& gpu) {
  CaseWriter writer(num_gpus, gpu);
  switch (num_gpus) {
    case 1:
      writer.add("2 sequences", {.micro_batch = 2}, Json::object(), {19837, 22400, 23800});
      break;
    case 2:
    case 4:
    case 8:
      add_data_parallel(writer, num_gpus);
      for (std::int64_t size = 2; size <= num_gpus; size *= 2) {
        add_tensor_parallel(writer, num_gpus, size);
      }
      for (std::int64_t size = 2; size <= num_gpus; size *= 2) {
        add_others(writer, num_gpus, size);
      }
      writer.add_experts(num_gpus == 2 ? 3 : 6, num_gpus == 2 ? 2 : 4);
      break;
    default: break;
  }
  return std::move(writer).cases();
}

namespace {

Json losses_of(const std::vector<StepLoss>& losses) {
  Json list = Json::array();
  for (const StepLoss& loss : losses) {
    list.push_back(
        {{"kind", loss.kind}, {"measured_s", loss.measured_s}, {"limit_s", loss.limit_s}});
  }
  return list;
}

Json if_known(double value) {
  return value > 0 ? Json(value) : Json(nullptr);
}

Json bench_of(const TrainingResult& result, const TrainingRun& run) {
  return {{"program", kVersionText},
          {"command", run.command},
          {"commit", run.commit},
          {"backend", "cuda"},
          {"machine", run.machine},
          {"attention", result.attention},
          {"products", result.products},
          {"sm_clock_mhz", if_known(result.sensors.sm_clock_mhz)},
          {"power_w", if_known(result.sensors.power_w)},
          {"sensors_absent", run.sensors_absent},
          {"sustained_flops_per_s", if_known(result.sustained_flops_per_s)},
          {"limit_s", if_known(result.limit_s.value_or(0))},
          {"roofline_s", if_known(result.roofline_s.value_or(0))},
          {"device_used", result.device_used_bytes},
          {"baseline", result.goal.baseline},
          {"must", result.goal.must},
          {"aim", result.goal.aim},
          {"losses", losses_of(result.losses)}};
}

double number_or_nothing(const JsonValue& value) {
  const bool is_number = value.kind == JsonKind::kInteger || value.kind == JsonKind::kReal;
  return is_number ? value.real : 0;
}

// A member of an object, nullptr if it is not there.
const JsonValue* member(const JsonValue& object, std::string_view name) {
  const auto found = std::ranges::find(object.members, name, &JsonMember::name);
  return found == object.members.end() ? nullptr : &found->value;
}

std::optional<double> positive(double value) {
  return value > 0 ? std::optional(value) : std::nullopt;
}

}  // namespace

std::string training_json(const TrainingResult& result, const TrainingRun& run) {
  Json line = Json::parse(result.line);
  line["framework_version"] = result.question.framework_version;
  Json measured = {{"status", result.out_of_memory ? "oom" : "crash"}};
  if (result.steps_s.empty()) {
    measured["reason"] = result.failure;
  } else {
    measured = {
        {"status", "ok"},
        {"step_times_s", result.steps_s},
        {"tokens_per_s_per_gpu", result.tokens_per_s_per_gpu(percentile(result.steps_s, 0.5))}};
  }
  measured["run"] = bench_of(result, run);
  line["measured"] = std::move(measured);
  return one_line_of(line);
}

std::optional<TrainingResult> training_result(const std::string& line, const std::string& place,
                                              const Library& library) {
  const JsonValue root = parse_json(line, place);
  const JsonValue* measured = member(root, "measured");
  const JsonValue* run = measured == nullptr ? nullptr : member(*measured, "run");
  if (run == nullptr || member(*run, "losses") == nullptr) {
    return std::nullopt;
  }
  TrainingResult result = {.question = read_case(line, place, library), .line = line};
  const auto number = [&](std::string_view name) {
    const JsonValue* value = member(*run, name);
    return value == nullptr ? 0 : number_or_nothing(*value);
  };
  if (const JsonValue* reason = member(*measured, "reason"); reason != nullptr) {
    result.failure = reason->string;
  }
  result.out_of_memory = result.question.measured->status == RunStatus::kOom;
  result.steps_s = result.question.measured->step_times_s;
  result.goal = {number("baseline"), number("must"), number("aim")};
  result.sensors = {.sm_clock_mhz = number("sm_clock_mhz"), .power_w = number("power_w")};
  result.sustained_flops_per_s = number("sustained_flops_per_s");
  result.limit_s = positive(number("limit_s"));
  result.roofline_s = positive(number("roofline_s"));
  for (const JsonValue& loss : member(*run, "losses")->items) {
    const auto field = [&](std::string_view name) -> const JsonValue& {
      const JsonValue* value = member(loss, name);
      if (value == nullptr) {
        throw InputError(place + ": " + loss.pointer + ": found no " + std::string(name) +
                         ", expected a result that bench_training wrote");
      }
      return *value;
    };
    result.losses.push_back({.kind = field("kind").string,
                             .measured_s = field("measured_s").real,
                             .limit_s = field("limit_s").real});
  }
  return result;
}

}  // namespace shardplan
