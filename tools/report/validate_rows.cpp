#include "tools/report/validate_rows.h"

#include <algorithm>
#include <limits>

#include "data/read/json_reader.h"
#include "tools/report/csv.h"
#include "tools/report/text.h"
#include "tools/report/validate.h"

namespace shardplan {
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
  // null stands for what is no number.
  double number() const {
    if (value_ == nullptr) {
      return 0;
    }
    return value_->kind == JsonKind::kNull ? std::numeric_limits<double>::quiet_NaN()
                                           : value_->real;
  }
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
  const std::string predicted = "; predicted " + std::to_string(found.at("predicted").integer());
  const std::string status = found.at("next_status").word();
  const std::string next = std::to_string(found.at("next").integer());
  if (value == 0 && status != name_of(RunStatus::kOom)) {
    return "no answer for " + name + ": " + next + " ended with " + status + predicted;
  }
  std::string text =
      value > 0 ? name + " " + std::to_string(value) + " runs" : "no " + name + " runs";
  if (found.at("next").is_there()) {
    text += ", " + next + ": " + status;
  }
  return text + predicted;
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

// "" where both are as near to the host's as they are to be.
std::string host_difference(const Fields& measured) {
  for (const std::string name : {"loss", "gradient_norm"}) {
    const double error = measured.at(name + "_error").number();
    if (!(error <= measured.at(name + "_tolerance").number())) {
      return name + " differs from the host's by " + std::to_string(error) + " of it";
    }
  }
  return "";
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
  summary.step_s = upper_median_of(times);
  for (const Fields& loss : measured.at("losses").items()) { summary.loss = loss.number(); }
  summary.attention = measured.at("run").at("attention").word();
  const std::string difference = host_difference(measured);
  summary.host_check_failed = !difference.empty();
  if (const std::string where = failed_text(measured.at("failed")); !where.empty()) {
    summary.reason = where + ": " + summary.reason;
  }
  if (!measured.is_there()) {
    summary.reason = predicted.at("reason").word();
  }
  if (summary.host_check_failed) {
    summary.reason = difference;
  }
  return summary;
}

bool is_result_line(const std::string& text) {
  try {
    return summary_of(text).status.has_value();
  } catch (const InputError&) { return false; }
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
