#include "tools/export/changed_settings.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "data/read/input_error.h"
#include "tools/export/export.h"
#include "tools/export/own_file.h"

namespace shardplan {
namespace {

// Without indentation, the backslash that goes on to the next line, and comments; "" where nothing
// is left.
std::string setting_of(std::string line) {
  if (const std::size_t comment = line.find("  #"); comment != std::string::npos) {
    line.erase(comment);
  }
  const std::size_t begin = line.find_first_not_of(' ');
  const std::size_t end = line.find_last_not_of(" \\,");
  if (begin == std::string::npos || end == std::string::npos || line[begin] == '#') {
    return "";
  }
  return line.substr(begin, end + 1 - begin);
}

std::vector<std::string> settings_of(const ExportedFile& file) {
  const std::string place = file.is_program ? "" : file.name + ": ";
  std::vector<std::string> settings;
  std::istringstream lines(file.text);
  for (std::string line; std::getline(lines, line);) {
    if (const std::string setting = setting_of(line); !setting.empty()) {
      settings.push_back(place + setting);
    }
  }
  return settings;
}

// Lines that `changes.diff` adds.
std::vector<std::string> added_lines(const ExportedFile& difference) {
  std::vector<std::string> settings;
  std::istringstream lines(difference.text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("+") && !line.starts_with("+++")) {
      if (std::string setting = setting_of(line.substr(1)); !setting.empty()) {
        settings.push_back(std::move(setting));
      }
    }
  }
  return settings;
}

std::vector<ExportedFile> files_of(const Options& options, const Question& question,
                                   const Library& library) {
  const Prediction prediction = predict_question(question, {});
  const ExportedModel model = exported_model(options, question, library);
  const ExportRequest request = {.question = question,
                                 .prediction = prediction,
                                 .model = model,
                                 .library = library,
                                 .command = ""};
  return exported_run(request, options).files;
}

std::vector<std::string> settings_of_files(const std::vector<ExportedFile>& files) {
  std::vector<std::string> settings;
  for (const ExportedFile& file : files) {
    if (file.name != "slurm.sbatch") {  // the same words once more
      std::ranges::move(settings_of(file), std::back_inserter(settings));
    }
  }
  return settings;
}

}  // namespace

std::vector<std::string> changed_settings(const Options& options, const Question& before,
                                          const Question& after, const Library& library) {
  try {
    const std::vector<ExportedFile> files = files_of(options, after, library);
    const auto difference = std::ranges::find(files, "changes.diff", &ExportedFile::name);
    if (difference != files.end()) {
      return added_lines(*difference);
    }
    const std::vector<std::string> old = settings_of_files(files_of(options, before, library));
    const std::set<std::string> known(old.begin(), old.end());
    std::vector<std::string> settings = settings_of_files(files);
    std::erase_if(settings, [&](const std::string& setting) { return known.contains(setting); });
    return settings;
  } catch (const InputError&) {  // the framework has no words for it
    return {};
  }
}

}  // namespace shardplan
