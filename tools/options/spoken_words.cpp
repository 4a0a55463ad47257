#include "tools/options/spoken_words.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "data/read/library.h"
#include "tools/options/option_values.h"

namespace shardplan {
namespace {

const OptionRow* row_of(std::string_view command, std::string_view name) {
  const std::vector<const OptionRow*> rows = options_of(command);
  const auto found = std::ranges::find(rows, name, &OptionRow::name);
  return found == rows.end() ? nullptr : *found;
}

bool is_on_or_off(const OptionRow& row) {
  return row.choices == std::vector<std::string>{"on", "off"};
}

bool is_pair(const std::string& text) {
  constexpr std::string_view kName =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  const std::size_t end = text.find_first_not_of(kName);
  return end != 0 && end != std::string::npos && text[end] == '=';
}

// Runs that --from reads; a .json may be a model, too.
constexpr std::array kRunEndings = std::to_array<std::string_view>(
    {".sh", ".slurm", ".sbatch", ".bash", ".yaml", ".yml", ".toml", ".log"});

bool is_run_file(const std::string& word) {
  return word.find(".sh:") != std::string::npos ||  // the training at a line of it
         std::ranges::any_of(kRunEndings,
                             [&](std::string_view ending) { return word.ends_with(ending); });
}

}  // namespace

std::vector<std::string> with_spoken_words(std::string_view command,
                                           const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const std::string name = word.starts_with("--") ? word.substr(2) : "";
    const OptionRow* const row = row_of(command, name);
    const OptionRow* const format = row_of(command, "format");
    const bool is_format = row == nullptr && format != nullptr &&
                           std::ranges::find(format->choices, name) != format->choices.end();
    const bool is_last = i + 1 == arguments.size() || arguments[i + 1].starts_with("--");
    if (is_format) {
      words.push_back("--format=" + name);
    } else if (row != nullptr && is_on_or_off(*row) && is_last) {
      words.push_back(word + "=on");
    } else {
      words.push_back(word);
    }
  }
  return words;
}

void split_pairs(const OptionRow& row, std::vector<std::string>& values) {
  const std::string list = values.back();
  if (!row.repeatable || row.argument.find("=VALUE") == std::string::npos ||
      list.find(',') == std::string::npos || list.ends_with(',')) {
    return;
  }
  std::vector<std::string> parts;
  std::size_t start = 0;
  while (start < list.size()) {
    const std::size_t end = std::min(list.find(',', start), list.size());
    parts.push_back(list.substr(start, end - start));
    start = end + 1;
  }
  if (std::ranges::all_of(parts, is_pair)) {
    values.pop_back();
    values.insert(values.end(), parts.begin(), parts.end());
  }
}

void take_positional_job(Options& options) {
  const OptionRow* const model = row_of(options.command, "model");
  const bool is_asked_so = options.command != "why-oom" && options.command != "explain";
  if (model == nullptr || !is_asked_so || options.positional.size() != 1) {
    return;
  }
  const std::string word = options.positional.front();
  const char* const name = is_run_file(word) ? "from" : "model";
  if (!given(options, name) && word.find('=') == std::string::npos) {
    add_option(options, name, word);
    options.positional.clear();
  }
}

void refuse_other_formats(const Options& options) {
  const std::string path = text_or(options, "out", "");
  if (row_of(options.command, "model") == nullptr || path.empty()) {
    return;
  }
  const std::string ending = in_lower_case(std::filesystem::path(path).extension().string());
  const std::string format = text_or(options, "format", "table");
  for (const char* const each : {"csv", "json"}) {
    if (ending == "." + std::string(each) && format != each) {
      throw InputError("--out: found '" + path + "', into which " +
                           (format == "table" ? "text" : format) + " would be written",
                       "--format " + std::string(each) + " --out " + path);
    }
  }
  if (ending == ".html" || ending == ".htm" || ending == ".pdf" || ending == ".md") {
    const std::string stem = path.substr(0, path.size() - ending.size());
    throw InputError("--out: found '" + path + "', into which " +
                         (format == "table" ? "text" : format) +
                         " would be written: there is no such format",
                     "--out " + stem + ".txt; --format csv and --format json are for programs");
  }
}

}  // namespace shardplan
