#include "tools/options/case_file.h"

#include <utility>

namespace shardplan {
namespace {

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r") == std::string::npos;
}

// The framework or a setting of it that no profile describes; "" if there is none.
std::string why_not_described(const Case& question) {
  return question.supported ? question.unsupported
                            : "no profile for the framework '" + question.framework + "'";
}

}  // namespace

CaseFile::CaseFile(const std::string& path) : file_(TextFile::or_standard_input(path)) {
  has_first_ = read(first_);
}

bool CaseFile::next(CaseText& line) {
  if (has_first_) {
    has_first_ = false;
    line = std::move(first_);
    return true;
  }
  return read(line);
}

bool CaseFile::read(CaseText& line) {
  line.file = file_.name();
  while (file_.next_line(line.text)) {
    line.line = ++line_;
    if (!is_blank(line.text)) {
      return true;
    }
  }
  return false;
}

Prediction predict_case(const Case& question) {
  if (const std::string reason = why_not_described(question); !reason.empty()) {
    return {.status = PredictedStatus::kUnsupported, .reason = reason};
  }
  return predict(question.job, question.plan, {});
}

TimeRefusal why_no_step_time(const Case& question) {
  if (const std::string reason = why_not_described(question); !reason.empty()) {
    return {.reason = reason};
  }
  const ValidityRule* broken = first_broken_rule(question.job, question.plan);
  if (broken == nullptr) {
    return {.reason = ""};
  }
  if (broken->name.starts_with("unsupported: model.") || broken->name.ends_with("_dropout")) {
    return {.reason = "", .only_of_memory = true};
  }
  return {.reason = broken->explain(question.job, question.plan)};
}

}  // namespace shardplan
