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
  if (!question.supported) {
    return {.status = PredictedStatus::kUnsupported,
            .reason = "no profile for the framework '" + question.framework + "'"};
  }
  if (!question.unsupported.empty()) {
    return {.status = PredictedStatus::kUnsupported, .reason = question.unsupported};
  }
  return predict(question.job, question.plan, {});
}

}  // namespace shardplan
