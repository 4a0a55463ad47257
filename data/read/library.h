// Models, GPUs, clusters and framework profiles by preset name or by path. The JSON of data/ is
// embedded at build time; a directory of the same layout overrides it. Nothing is read or parsed
// before it is asked for, and nothing of it twice.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/models/config.h"
#include "data/read/json_reader.h"
#include "data/read/provenance.h"
#include "data/read/text_file.h"
#include "estimator/plan/cluster_spec.h"
#include "estimator/plan/framework_profile.h"

namespace shardplan {

// One file of data/, e.g. {"models/llama3-8b.json", "{...}"}.
struct DataFile {
  std::string_view path;
  std::string_view text;
};
std::span<const DataFile> embedded_data();  // generated at build time

// {"alias": "preset", ...}; every other file of models/ is a preset.
inline constexpr std::string_view kModelAliasesPath = "models/aliases.json";
// What presets of text models were published with: {"preset": {"model_type": ..., "vision_config":
// ...}, ...}, as in the whole config.json.
inline constexpr std::string_view kTowersPath = "models/towers.json";

// A parsed file and the name that messages about it carry.
struct JsonFile {
  JsonValue json;
  std::string file;
};

// One switch that a profile declares: name, type, default, allowed words, what it does, source.
struct ProfileOption {
  std::string name;
  std::string type;           // "bool", "integer", "number", "choice"
  std::string default_value;  // as text
  std::vector<std::string> choices;
  double low = 0;  // of integers and numbers
  double high = 0;
  std::string framework_default;  // where the framework's own is another one; else ""
  bool assumed = false;           // nothing that a run states says it
  std::string meaning;
  std::string source;
};

struct ProfileFile {
  FrameworkProfile profile;  // with its defaults
  std::vector<ProfileOption> options;
  std::vector<ProfileOption> plan_defaults;  // where a plan is silent: "default_zero", ...
  Provenances host_numbers;                  // of the host: "host/layer", "compiled_host/layer"
};

struct TimeConstantsFile {
  std::shared_ptr<const TimeConstants> constants;
  Provenances provenances;
};

// A config.json and the model's name.
struct ModelFile {
  std::string name;
  JsonFile config;
};

// Files are found in library.cpp; what they say of models, GPUs and frameworks is read in
// models/preset.cpp, clusters/machine.cpp and machine_names.cpp, frameworks/framework.cpp and
// time/constants.cpp.
class Library {
 public:
  Library();                                            // embedded data
  explicit Library(const std::string& data_directory);  // --data DIR; InputError if unreadable
  // The same, which has read nothing yet and adds the text of every file that it reads to `texts`,
  // which must outlive it.
  Library noting(std::string& texts) const;

  // Preset name (or alias or published name; upper and lower case are the same) or path to a file
  // (anything with '/' or ending in .json; "Qwen/Qwen3-8B" where there is none). Unknown names are
  // InputErrors with a did-you-mean; `where` opens their message ("cases.jsonl:17: /cluster: "),
  // else the name itself does.
  ModelConfig model(const std::string& name_or_path, UnknownKeys unknown_keys = UnknownKeys::kWarn,
                    const std::string& where = "") const;
  ModelFile model_file(const std::string& name_or_path, const std::string& where = "") const;
  // The preset of a model by the name that it is published by, "Qwen/Qwen3-30B-A3B-Instruct-2507",
  // whose variants have the same sizes; "" if there is none.
  std::string published_model(const std::string& name) const;
  GpuSpec gpu(const std::string& name_or_path, const std::string& where = "") const;
  // Also NODESxGPUS-NAME for any shipped GPU or cluster, "2048x8-h100", "16x8-aws-p5", and what
  // cluster_named understands.
  ClusterSpec cluster(const std::string& name_or_path, const std::string& where = "") const;
  // The name of the cluster that a word means, in lower case: "1x8-h100" of "8xH100", "h100x8" and
  // "8 x NVIDIA H100 80GB HBM3", "aws-p5" of "p5.48xlarge". "" for a word that means none; `where`
  // opens the message of an InputError for GPUs that fill no nodes.
  std::string cluster_named(const std::string& word, const std::string& where = "") const;
  // One node of this GPU with the network it is usually sold with: the defaults of a cluster.
  ClusterSpec usual_cluster(const std::string& gpu_name_or_path,
                            const std::string& where = "") const;
  // Of every GPU and cluster of the library.
  const std::shared_ptr<const TimeConstants>& time_constants() const;
  const TimeConstantsFile& time_constants_file() const;
  // The profile's defaults. Unknown frameworks are InputErrors; known_framework tells before.
  FrameworkProfile framework(const std::string& name, const std::string& where = "") const;
  // The name under which the profile is kept of a framework that its users call so: "megatron" of
  // "Megatron-LM"; "" if there is none.
  std::string framework_named(const std::string& word) const;
  bool known_framework(const std::string& name) const;
  const ProfileFile& profile(const std::string& framework) const;  // of a known one
  // Under which name the profile is kept: "nanotron", an older version of it as "nanotron@v0.4".
  std::string key_of(const FrameworkProfile& profile) const;

  std::vector<std::string> model_names() const;
  std::vector<std::string> gpu_names() const;
  std::vector<std::string> cluster_names() const;
  std::vector<std::string> framework_names() const;

  // Runs with measurements, a case line each: "measured/h200_frameworks.jsonl".
  std::vector<std::string> case_files() const;
  std::string text_of(const std::string& path) const;

  bool has(const std::string& path) const;  // "gpus/H200-SXM-141GB.json"
  // InputError, also if it is not there.
  const JsonFile& parse(const std::string& path) const;

 private:
  std::string file_of(const std::string& path) const;  // as messages name it
  JsonValue parse_text(const std::string& text, const std::string& file) const;
  std::vector<std::string> names_in(std::string_view folder) const;
  void add_tower(ModelSpec& model) const;
  // "" if unknown; by id or alias, and also by what nvidia-smi prints.
  std::string gpu_path(const std::string& name) const;
  std::string spoken_gpu_path(const std::string& name) const;
  std::string cluster_path(const std::string& name) const;
  std::string machine_named(const std::string& word) const;  // "aws-p5", "h100"

  struct Read {
    std::map<std::string, JsonFile> files;              // by path
    std::map<std::string, ProfileFile> profiles;        // by framework
    std::map<std::string, ClusterSpec> usual_clusters;  // by the GPU's name
    std::optional<TimeConstantsFile> time_constants;
  };

  std::string directory_;                                  // "": embedded
  std::vector<std::string> paths_;                         // sorted
  std::string* texts_ = nullptr;                           // nullptr: nobody wants them
  std::shared_ptr<Read> read_ = std::make_shared<Read>();  // copies add to it
};

bool is_path(const std::string& name);  // has a '/' or ends in .json
std::string in_lower_case(std::string_view text);
// "unsloth/llama-3-8b-bnb-4bit", whose linear layers bitsandbytes has quantized to four bits, all
// of them: not "-unsloth-bnb-4bit", which leaves out some.
bool names_4bit_checkpoint(const std::string& model);
// Such a name without its ending, and any other as it is.
std::string unpacked_name(const std::string& model);

}  // namespace shardplan
