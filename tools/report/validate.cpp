#include "tools/report/validate.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "data/models/config.h"
#include "data/read/json_reader.h"
#include "tools/report/json.h"
#include "tools/report/values.h"
#include "tools/report/version.h"
#include "validator/supervise/message.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

// The line as `batch` answers it.
Json predicted_line(const ValidateAnswer& answer) {
  return Json::parse(batch_json(
      {.line = answer.line, .id = answer.id, .framework = "", .prediction = answer.prediction}));
}

// Where a run was out of memory: the phase, in the words of users.
std::string place_of(const ValidateAnswer& answer) {
  if (answer.was_predicted) {
    return "predicted";
  }
  const RunPhase phase = answer.outcome.phase;
  const bool is_nccl = phase == RunPhase::kCommunicators || phase == RunPhase::kWarmUp;
  return is_nccl ? "nccl" : std::string(name_of(phase));
}

Json failed_of(const ValidateAnswer& answer) {
  const RunOutcome& outcome = answer.outcome;
  Json json;
  if (outcome.rank >= 0) {
    json = {{"rank", outcome.rank}, {"phase", name_of(outcome.phase)}};
  }
  if (outcome.step >= 0) {
    json["step"] = outcome.step;
  }
  if (outcome.operation >= 0) {
    json["operation"] = outcome.operation;
    json["operation_name"] = answer.operation_name;
  }
  if (outcome.status == RunStatus::kOom) {
    json["place"] = place_of(answer);
  }
  if (outcome.signal) {
    json["signal"] = *outcome.signal;
  }
  if (outcome.requested_bytes) {
    json["requested"] = *outcome.requested_bytes;
  }
  if (outcome.free_bytes) {
    json["free"] = *outcome.free_bytes;
  }
  if (outcome.needed_factor) {
    json["needed_factor"] = *outcome.needed_factor;
  }
  return json;
}

Json positions_of(const std::vector<Position>& positions) {
  Json json = Json::array();
  for (std::size_t rank = 0; rank < positions.size(); ++rank) {
    const Position& at = positions[rank];
    json.push_back({{"rank", rank},
                    {"phase", name_of(at.phase)},
                    {"step", at.step},
                    {"operation", at.operation},
                    {"stopped", at.is_stopped}});
  }
  return json;
}

Json json_of(const RankResult& result, std::int64_t rank, std::int64_t pp_rank) {
  const RankMemory& memory = result.memory;
  const std::int64_t arenas = memory.persistent_arena + memory.dynamic_arena;
  Json json = {{"rank", rank},
               {"pp_rank", pp_rank},
               {"device", result.device},
               {"peak_allocated", arenas},
               {"peak_reserved", arenas},
               {"reserved_end", arenas},
               {"device_used_end", memory.device_used},
               {"persistent_arena", memory.persistent_arena},
               {"dynamic_arena", memory.dynamic_arena},
               {"context", memory.context},
               {"libraries", memory.libraries},
               {"communicators", memory.communicators},
               {"growth", memory.growth},
               {"unattributed", memory.unattributed}};
  if (memory.device_total > 0) {
    json["device_total"] = memory.device_total;
  }
  if (!memory.groups.empty()) {
    json["communicators_by_group"] = Json::object();
    for (const GroupBytes& group : memory.groups) {
      json["communicators_by_group"][std::string(name_of(group.kind))] = group.bytes;
    }
  }
  return json;
}

// What is no number is larger than any.
double larger(double a, double b) {
  return std::isnan(a) || a >= b ? a : b;
}

double sum(double a, double b) {
  return a + b;
}

// A step lasts as long as its slowest rank; the loss is the sum of the ranks' shares; the norm of
// the gradients is the same on all of them.
std::vector<double> over_ranks(const std::vector<RankResult>& ranks,
                               std::vector<double> RankResult::*field,
                               double (*joined)(double, double)) {
  std::vector<double> all;
  for (const RankResult& rank : ranks) {
    const std::vector<double>& values = rank.*field;
    all.resize(std::max(all.size(), values.size()), 0);
    for (std::size_t i = 0; i < values.size(); ++i) { all[i] = joined(all[i], values[i]); }
  }
  return all;
}

void add_results(Json& json, const ValidateAnswer& answer) {
  const Case& question = *answer.question;
  const std::vector<RankResult>& ranks = answer.outcome.ranks;
  const std::vector<double> times = over_ranks(ranks, &RankResult::step_times_s, larger);
  if (answer.request.simulated_rank) {
    json["compute_times_s"] = times;  // neither a step nor tokens: nobody else took part
  } else {
    json["step_times_s"] = times;
    json["losses"] = over_ranks(ranks, &RankResult::losses, sum);
    json["gradient_norms"] = over_ranks(ranks, &RankResult::gradient_norms, larger);
    const double median = upper_median_of(times);
    if (median > 0) {
      json["tokens_per_s_per_gpu"] = static_cast<double>(question.job.global_batch) *
                                     static_cast<double>(question.job.sequence_length) / median /
                                     static_cast<double>(answer.request.world_size);
    }
  }
  if (answer.host_check) {
    const auto& [losses, norms] = *answer.host_check;
    json["host_losses"] = losses.host;
    json["loss_error"] = losses.worst;
    json["loss_tolerance"] = losses.tolerance;
    json["host_gradient_norms"] = norms.host;
    json["gradient_norm_error"] = norms.worst;
    json["gradient_norm_tolerance"] = norms.tolerance;
  }
  json["ranks"] = Json::array();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::int64_t rank = answer.request.simulated_rank.value_or(static_cast<std::int64_t>(i));
    const std::int64_t pp_rank = coordinates_of(question.job, question.plan, rank).pp;
    json["ranks"].push_back(json_of(ranks[i], rank, pp_rank));
  }
}

// What the ranks say, each thing once.
std::string different(const std::vector<RankResult>& ranks, std::string RankResult::*field) {
  std::set<std::string> words;
  for (const RankResult& rank : ranks) { words.insert(rank.*field); }
  words.erase("");
  std::string all;
  for (const std::string& word : words) { all += (all.empty() ? "" : "; ") + word; }
  return all;
}

Json run_of(const ValidateAnswer& answer) {
  const RunRequest& request = answer.request;
  Json json = {{"program", kVersionText},
               {"command", answer.command},
               {"backend", answer.backend},
               {"warmup", request.warmup},
               {"steps", request.steps},
               {"seed", request.seed},
               {"fp32", request.precision == RunPrecision::kFloat}};
  if (request.memory_limit_bytes) {
    json["memory_limit"] = *request.memory_limit_bytes;
  }
  if (request.simulated_rank) {
    json["simulated_rank"] = *request.simulated_rank;
  }
  if (const std::string machine = different(answer.outcome.ranks, &RankResult::machine);
      !machine.empty()) {
    json["machine"] = machine;
  }
  if (const std::string attention = different(answer.outcome.ranks, &RankResult::attention);
      !attention.empty()) {
    json["attention"] = attention;
  }
  if (const std::string products = different(answer.outcome.ranks, &RankResult::products);
      !products.empty()) {
    json["products"] = products;
  }
  return json;
}

Json measured_of(const ValidateAnswer& answer) {
  const RunOutcome& outcome = answer.outcome;
  Json json = {{"status", name_of(outcome.status)}};
  if (outcome.status == RunStatus::kOk) {
    add_results(json, answer);
  } else {
    json["reason"] = outcome.reason;
    if (Json failed = failed_of(answer); !failed.empty()) {
      json["failed"] = std::move(failed);
    }
    if (!outcome.positions.empty()) {
      json["positions"] = positions_of(outcome.positions);
    }
    json["restarted_workers"] = outcome.restarted;
  }
  json["run"] = run_of(answer);
  return json;
}

bool is_config_of(const Json& config, const ModelSpec& model) {
  try {
    const ModelConfig read = read_model_config(parse_json(config.dump(), "model"), model.name,
                                               "model", UnknownKeys::kWarn);
    return read.model.layers == model.layers;
  } catch (const InputError&) { return false; }
}

// Not every config can say it: a name has its own layers, and lists of them have their length.
void resize_layers(Json& config, const ModelSpec& model) {
  if (config.is_object() && config.contains("num_hidden_layers")) {
    config["num_hidden_layers"] = model.num_layers();
    if (is_config_of(config, model)) {
      return;
    }
  }
  config = {{"name", model.name}, {"layers_changed_to", model.num_layers()}};
}

// The size that was run stands where a case line has it.
void resize(Json& line, const ValidateAnswer& answer) {
  const Case& question = *answer.question;
  switch (*answer.axis) {
    case SizeAxis::kMicroBatch:
      line["training"]["micro_batch"] = question.plan.micro_batch;
      line["training"].erase("global_batch");
      line["training"]["num_microbatches"] = num_microbatches(question.job, question.plan);
      break;
    case SizeAxis::kSequenceLength:
      line["training"]["sequence_length"] = question.job.sequence_length;
      break;
    case SizeAxis::kLayers: resize_layers(line["model"], question.job.model); break;
  }
}

}  // namespace

double upper_median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

HostCheck compared(const HostSteps& host, const std::vector<RankResult>& ranks,
                   const HostTolerance& tolerance) {
  const auto note = [](HostComparison& comparison, std::size_t step, double found) {
    const double expected = comparison.host.at(step);
    comparison.worst = larger(comparison.worst, std::abs(found - expected) / std::abs(expected));
  };
  HostCheck check{
      .losses = {.host = host.losses, .tolerance = tolerance.loss},
      .gradient_norms = {.host = host.gradient_norms, .tolerance = tolerance.gradient_norm}};
  for (std::size_t step = 0; step < host.losses.size(); ++step) {
    double loss = 0;
    for (const RankResult& rank : ranks) {
      loss += rank.losses.at(step);
      note(check.gradient_norms, step, rank.gradient_norms.at(step));
    }
    note(check.losses, step, loss);
  }
  return check;
}

std::string validate_json(const ValidateAnswer& answer) {
  const Json predicted = predicted_line(answer);
  if (!answer.question) {
    return one_line_of(predicted);
  }
  Json line = Json::parse(answer.case_text);
  if (answer.axis) {
    resize(line, answer);
  }
  line["framework_version"] = answer.question->framework_version;
  line["predicted"] = predicted["predicted"];
  line.erase("measured");
  line["measured"] = measured_of(answer);
  return one_line_of(line);
}

std::string with_maximum(const std::string& result_line, const RealMaximum& maximum) {
  Json line = Json::parse(result_line);
  Json found = {
      {"name", name_of(maximum.axis)}, {"value", maximum.value}, {"predicted", maximum.predicted}};
  if (maximum.next > 0) {
    found["next"] = maximum.next;
    found["next_status"] = name_of(maximum.next_status);
  }
  line["measured"]["find_max"] = std::move(found);
  return one_line_of(line);
}

}  // namespace shardplan
