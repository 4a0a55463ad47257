#include "tools/case_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>

namespace shardplan {
namespace {

// The next line without its end. Of a line that no reader accepts for its length, only the start is
// kept.
bool next_line(std::istream& input, std::string& text) {
  text.clear();
  std::streambuf& buffer = *input.rdbuf();
  constexpr int kEnd = std::char_traits<char>::eof();
  int letter = buffer.sbumpc();
  if (letter == kEnd) {
    return false;
  }
  for (; letter != kEnd && letter != '\n'; letter = buffer.sbumpc()) {
    if (static_cast<std::int64_t>(text.size()) <= kMaxJsonBytes) {
      text += static_cast<char>(letter);
    }
  }
  return true;
}

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r") == std::string::npos;
}

constexpr const char* kStandardInput = "-";

// The framework or a setting of it that no profile describes; "" if there is none.
std::string why_not_described(const Case& question) {
  return question.supported ? question.unsupported
                            : "no profile for the framework '" + question.framework + "'";
}

}  // namespace

CaseFile::CaseFile(const std::string& path)
    : input_(path == kStandardInput ? std::cin : file_),
      name_(path == kStandardInput ? "standard input" : path) {
  if (path == kStandardInput) {
    return;
  }
  std::error_code problem;
  if (std::filesystem::is_directory(path, problem)) {
    throw InputError(path + ": found a directory, expected a file of case lines");
  }
  file_.open(path, std::ios::binary);
  if (!file_) {
    throw InputError(path + ": cannot be read: " + std::strerror(errno));
  }
}

bool CaseFile::next(CaseText& line) {
  line.file = name_;
  while (next_line(input_, line.text)) {
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
