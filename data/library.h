// Models, GPUs, clusters and framework profiles by preset name or by path. The JSON of data/ is
// embedded at build time; a directory of the same layout overrides it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/json_reader.h"
#include "data/model_config.h"
#include "estimator/cluster_spec.h"
#include "estimator/framework_profile.h"

namespace shardplan {

// One file of data/, e.g. {"models/llama3-8b.json", "{...}"}.
struct DataFile {
  std::string_view path;
  std::string_view text;
};
std::vector<DataFile> embedded_data();  // generated at build time

class Library {
 public:
  Library();                                            // embedded data
  explicit Library(const std::string& data_directory);  // --data DIR; InputError if unreadable

  // Preset name (or alias) or path to a file (anything with '/' or ending in .json).
  // Unknown names are InputErrors with a did-you-mean.
  ModelConfig model(const std::string& name_or_path,
                    UnknownKeys unknown_keys = UnknownKeys::kWarn) const;
  GpuSpec gpu(const std::string& name_or_path) const;
  // Also NODESxGPUS-GPU for any shipped GPU: "2048x8-h100".
  ClusterSpec cluster(const std::string& name_or_path) const;
  // The profile's defaults. Unknown frameworks are InputErrors; known_framework tells before.
  FrameworkProfile framework(const std::string& name) const;
  bool known_framework(const std::string& name) const;

  std::vector<std::string> model_names() const;
  std::vector<std::string> gpu_names() const;
  std::vector<std::string> cluster_names() const;
  std::vector<std::string> framework_names() const;

 private:
  std::string text_of(const std::string& path) const;
  std::vector<std::string> names_in(const std::string& folder) const;

  std::map<std::string, std::string> files_;  // relative path -> text
};

// Cluster and GPU from their JSON objects (library files, case lines).
ClusterSpec read_cluster(const JsonValue& value, const std::string& file, const Library& library);
GpuSpec read_gpu(const JsonValue& value, const std::string& file);

// One switch that a profile declares: name, type, default, allowed words, what it does, source.
struct ProfileOption {
  std::string name;
  std::string type;           // "bool", "integer", "number", "choice"
  std::string default_value;  // as text
  std::vector<std::string> choices;
  std::string meaning;
  std::string source;
};
std::vector<ProfileOption> profile_options(const Library& library, const std::string& framework);

// Applies options (a JSON object of a case line, or key=value words of the command line) to a
// profile; unknown names and wrong types are InputErrors that list what exists.
void apply_options(FrameworkProfile& profile, const JsonValue& options, const std::string& file,
                   const Library& library);
void apply_option(FrameworkProfile& profile, const std::string& name, const std::string& word,
                  const Library& library);

}  // namespace shardplan
