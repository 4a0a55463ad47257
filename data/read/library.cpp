// Where the JSON files are and what they are called.
#include "data/read/library.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>

namespace shardplan {

namespace {

constexpr std::string_view kSuffix = ".json";
constexpr std::string_view kCasesSuffix = ".jsonl";

}  // namespace

bool is_path(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(kSuffix);
}

std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  return lower;
}

Library::Library() {
  for (const DataFile& file : embedded_data()) { paths_.emplace_back(file.path); }
  std::ranges::sort(paths_);
}

Library::Library(const std::string& data_directory) : directory_(data_directory) {
  for (const char* folder : {"models", "gpus", "clusters", "frameworks", "arguments", "time"}) {
    std::error_code failed;
    const std::filesystem::path path = std::filesystem::path(directory_) / folder;
    for (std::filesystem::directory_iterator entry(path, failed), end; !failed && entry != end;
         entry.increment(failed)) {
      const std::string name = entry->path().filename().string();
      if (name.ends_with(kSuffix)) {
        paths_.push_back(std::string(folder) + "/" + name);
      }
    }
  }
  for (const char* folder : {"measured", "published"}) {
    std::error_code failed;
    const std::filesystem::path path = std::filesystem::path(directory_) / folder;
    for (std::filesystem::directory_iterator entry(path, failed), end; !failed && entry != end;
         entry.increment(failed)) {
      if (std::string name = entry->path().filename().string(); name.ends_with(kCasesSuffix)) {
        paths_.push_back(std::string(folder) + "/" + name);
      }
    }
  }
  if (paths_.empty()) {
    throw InputError(directory_ +
                     ": found no JSON file in models, gpus, clusters or frameworks, expected a "
                     "directory with these folders");
  }
  std::ranges::sort(paths_);
}

bool Library::has(const std::string& path) const {
  return std::ranges::binary_search(paths_, path);
}

std::string Library::file_of(const std::string& path) const {
  return (directory_.empty() ? "data" : directory_) + "/" + path;
}

std::string Library::text_of(const std::string& path) const {
  if (!directory_.empty()) {
    return read_text_file(file_of(path));
  }
  const std::span<const DataFile> files = embedded_data();
  const auto found = std::ranges::find(files, path, &DataFile::path);
  if (found == files.end()) {
    throw InputError(file_of(path) + ": found no such file, expected one of the data files");
  }
  return std::string(found->text);
}

Library Library::noting(std::string& texts) const {
  Library other = *this;
  other.texts_ = &texts;
  other.read_ = std::make_shared<Read>();
  return other;
}

JsonValue Library::parse_text(const std::string& text, const std::string& file) const {
  if (texts_ != nullptr) {
    *texts_ += text + "\n";
  }
  return parse_json(text, file);
}

const JsonFile& Library::parse(const std::string& path) const {
  if (const auto read = read_->files.find(path); read != read_->files.end()) {
    return read->second;
  }
  std::string file = file_of(path);
  JsonValue json = parse_text(text_of(path), file);
  return read_->files[path] = {.json = std::move(json), .file = std::move(file)};
}

// File names without folder and suffix, in order.
std::vector<std::string> Library::names_in(std::string_view folder) const {
  const std::string prefix = std::string(folder) + "/";
  std::vector<std::string> names;
  for (const std::string& path : paths_) {
    if (path.starts_with(prefix) && path != kModelAliasesPath && path != kTowersPath) {
      names.push_back(path.substr(prefix.size(), path.size() - prefix.size() - kSuffix.size()));
    }
  }
  return names;
}

std::vector<std::string> Library::case_files() const {
  std::vector<std::string> files;
  std::ranges::copy_if(paths_, std::back_inserter(files),
                       [](const std::string& path) { return path.ends_with(kCasesSuffix); });
  return files;
}

std::vector<std::string> Library::model_names() const {
  return names_in("models");
}
std::vector<std::string> Library::gpu_names() const {
  return names_in("gpus");
}
std::vector<std::string> Library::cluster_names() const {
  return names_in("clusters");
}
std::vector<std::string> Library::framework_names() const {
  return names_in("frameworks");
}

}  // namespace shardplan
