#include "tools/report_validate.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "data/json_reader.h"
#include "tools/report_values.h"
#include "tools/text.h"
#include "tools/version.h"
#include "validator/message.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

// As `batch` writes it.
Json predicted_of(const ValidateAnswer& answer) {
  return Json::parse(batch_json({.line = answer.line,
                                 .id = answer.id,
                                 .framework = "",
                                 .prediction = answer.prediction}))["predicted"];
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

// A step lasts as long as its slowest rank; the loss is the sum of the ranks' shares.
std::vector<double> over_ranks(const std::vector<RankResult>& ranks,
                               std::vector<double> RankResult::*field, bool is_sum) {
  std::vector<double> all;
  for (const RankResult& rank : ranks) {
    const std::vector<double>& values = rank.*field;
    all.resize(std::max(all.size(), values.size()), 0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      all[i] = is_sum ? all[i] + values[i] : std::max(all[i], values[i]);
    }
  }
  return all;
}

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

void add_results(Json& json, const ValidateAnswer& answer) {
  const Case& question = *answer.question;
  const std::vector<RankResult>& ranks = answer.outcome.ranks;
  const std::vector<double> times = over_ranks(ranks, &RankResult::step_times_s, false);
  if (answer.request.simulated_rank) {
    json["compute_times_s"] = times;  // neither a step nor tokens: nobody else took part
  } else {
    json["step_times_s"] = times;
    json["losses"] = over_ranks(ranks, &RankResult::losses, true);
    const double median = median_of(times);
    if (median > 0) {
      json["tokens_per_s_per_gpu"] =
          static_cast<double>(question.job.global_batch * question.job.sequence_length) / median /
          static_cast<double>(answer.request.world_size);
    }
  }
  if (answer.host_check) {
    json["host_losses"] = answer.host_check->losses;
    json["loss_error"] = answer.host_check->worst;
    json["loss_tolerance"] = answer.host_check->tolerance;
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
    case SizeAxis::kLayers:
      if (line["model"].is_object() && line["model"].contains("num_hidden_layers")) {
        line["model"]["num_hidden_layers"] = question.job.model.num_layers();
      } else {
        line["model"] = {{"name", question.job.model.name},
                         {"layers_changed_to", question.job.model.num_layers()}};
      }
      break;
  }
}

}  // namespace

std::string validate_json(const ValidateAnswer& answer) {
  Json line;
  if (answer.question) {
    line = Json::parse(answer.case_text);
    if (answer.axis) {
      resize(line, answer);
    }
    line["framework_version"] = answer.question->framework_version;
  } else {
    line["id"] = answer.id;
  }
  line["predicted"] = predicted_of(answer);
  line.erase("measured");
  if (answer.question) {
    line["measured"] = measured_of(answer);
  }
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

namespace {

// Fields of a result line, where they are there.
class Fields {
 public:
  explicit Fields(const JsonValue* value) : value_(value) {}
  Fields at(std::string_view name) const {
    if (value_ != nullptr) {
      for (const JsonMember& member : value_->members) {
        if (member.name == name) {
          return Fields(&member.value);
        }
      }
    }
    return Fields(nullptr);
  }
  bool is_there() const { return value_ != nullptr; }
  std::string word() const { return value_ == nullptr ? "" : value_->string; }
  std::int64_t integer() const { return value_ == nullptr ? 0 : value_->integer; }
  double number() const { return value_ == nullptr ? 0 : value_->real; }
  std::vector<Fields> items() const {
    std::vector<Fields> all;
    if (value_ != nullptr) {
      for (const JsonValue& item : value_->items) { all.emplace_back(&item); }
    }
    return all;
  }

 private:
  const JsonValue* value_;
};

std::int64_t most(const Fields& list, std::string_view name) {
  std::int64_t bytes = 0;
  for (const Fields& item : list.items()) { bytes = std::max(bytes, item.at(name).integer()); }
  return bytes;
}

std::string maximum_text(const Fields& found) {
  if (!found.is_there()) {
    return "";
  }
  const std::string name = found.at("name").word();
  const std::int64_t value = found.at("value").integer();
  std::string text =
      value > 0 ? name + " " + std::to_string(value) + " runs" : "no " + name + " runs";
  if (found.at("next").is_there()) {
    text +=
        ", " + std::to_string(found.at("next").integer()) + ": " + found.at("next_status").word();
  }
  return text + "; predicted " + std::to_string(found.at("predicted").integer());
}

// "rank 1, steps, step 3, operation 12 (all_reduce ...)": where a run has failed.
std::string failed_text(const Fields& failed) {
  if (!failed.at("rank").is_there()) {
    return failed.at("place").word();
  }
  std::string text =
      "rank " + std::to_string(failed.at("rank").integer()) + ", " + failed.at("phase").word();
  if (failed.at("operation").is_there()) {
    text += ", step " + std::to_string(failed.at("step").integer()) + ", operation " +
            std::to_string(failed.at("operation").integer()) + " (" +
            failed.at("operation_name").word() + ")";
  }
  return text;
}

}  // namespace

ResultSummary summary_of(const std::string& result_line) {
  const JsonValue root = parse_json(result_line, "result");
  const Fields line(&root);
  const Fields predicted = line.at("predicted");
  const Fields measured = line.at("measured");
  ResultSummary summary = {.id = line.at("id").word(),
                           .framework = line.at("framework").word(),
                           .predicted_status = predicted.at("status").word(),
                           .predicted_bytes = most(predicted.at("stages"), "device_used"),
                           .status = value_of<RunStatus>(measured.at("status").word()),
                           .reason = measured.at("reason").word(),
                           .measured_bytes = most(measured.at("ranks"), "device_used_end"),
                           .tokens_per_s_per_gpu = measured.at("tokens_per_s_per_gpu").number(),
                           .maximum = maximum_text(measured.at("find_max"))};
  std::vector<double> times;
  for (const Fields& time : measured.at("step_times_s").items()) { times.push_back(time.number()); }
  summary.step_s = median_of(times);
  for (const Fields& loss : measured.at("losses").items()) { summary.loss = loss.number(); }
  summary.attention = measured.at("run").at("attention").word();
  summary.host_check_failed =
      measured.at("loss_error").number() > measured.at("loss_tolerance").number();
  if (const std::string where = failed_text(measured.at("failed")); !where.empty()) {
    summary.reason = where + ": " + summary.reason;
  }
  if (!measured.is_there()) {
    summary.reason = predicted.at("reason").word();
  }
  if (summary.host_check_failed) {
    summary.reason = "loss differs from the host's by " +
                     std::to_string(measured.at("loss_error").number()) + " of it";
  }
  return summary;
}

std::string validate_heading(Format format) {
  switch (format) {
    case Format::kTable:
      return "  line  status        predicted  measured    step s  tokens/s/GPU      loss  "
             "attention     id "
             "(device used, GiB)\n";
    case Format::kCsv:
      return csv_header(
          {.columns = {"line", "id", "framework", "predicted_status", "predicted_device_used",
                       "status", "measured_device_used", "step_time_s", "tokens_per_s_per_gpu",
                       "loss", "attention", "find_max", "reason"}});
    case Format::kJson: return "";
  }
  return "";
}

std::string validate_row(const std::string& result_line, std::int64_t line, Format format) {
  if (format == Format::kJson) {
    return result_line;
  }
  const ResultSummary row = summary_of(result_line);
  const std::string status = row.status ? std::string(name_of(*row.status)) : "error";
  if (format == Format::kCsv) {
    const auto bytes = [](std::int64_t value) { return value > 0 ? Cell{value} : Cell{}; };
    const auto real = [](double value) { return value > 0 ? Cell{value} : Cell{}; };
    return csv_rows({.columns = {},
                     .rows = {{line, row.id, row.framework, row.predicted_status,
                               bytes(row.predicted_bytes), status, bytes(row.measured_bytes),
                               real(row.step_s), real(row.tokens_per_s_per_gpu), real(row.loss),
                               row.attention, row.maximum, row.reason}}});
  }
  const auto number = [](bool is_there, const std::string& text, std::int64_t width) {
    return padded_left(is_there ? text : "", width);
  };
  std::string text = padded_left(std::to_string(line), 6) + "  " + padded_right(status, 12) +
                     number(row.predicted_bytes > 0, gib(row.predicted_bytes), 11) +
                     number(row.measured_bytes > 0, gib(row.measured_bytes), 10) +
                     number(row.step_s > 0, fixed(row.step_s, 4), 10) +
                     number(row.tokens_per_s_per_gpu > 0, fixed(row.tokens_per_s_per_gpu, 0), 14) +
                     number(row.loss > 0, fixed(row.loss, 5), 10) + "  " +
                     padded_right(row.attention.substr(0, row.attention.find_first_of(":;")), 12) +
                     "  " + one_line(row.id);
  for (const std::string& more : {row.maximum, row.reason}) {
    text += more.empty() ? "" : ": " + one_line(more);
  }
  return text + "\n";
}

}  // namespace shardplan
