// One line of a case file -> Job, Plan and Measurement.
#include "data/read/case_line.h"

#include <algorithm>
#include <charconv>

#include "data/arguments/run_settings.h"
#include "data/clusters/machine.h"
#include "data/frameworks/framework.h"
#include "data/read/case_measured.h"
#include "data/read/case_members.h"
#include "data/read/case_plan.h"
#include "data/read/case_tuning.h"
#include "data/read/json_message.h"
#include "estimator/frameworks/framework.h"

namespace shardplan {

namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;  // of one microbatch

// "cases.jsonl:17" -> "cases.jsonl", 17.
struct LinePlace {
  std::string file;
  std::int64_t line = 1;
};
LinePlace split_place(const std::string& place) {
  const std::size_t colon = place.rfind(':');
  std::int64_t line = 0;
  if (colon != std::string::npos) {
    const char* const end = place.data() + place.size();
    const std::from_chars_result read = std::from_chars(place.data() + colon + 1, end, line);
    if (read.ec == std::errc{} && read.ptr == end) {
      return {.file = place.substr(0, colon), .line = line};
    }
  }
  return {.file = place, .line = 1};
}

// Sequences per step. Both numbers may be given and then must agree; a plan whose degrees do not
// divide the cluster is why_invalid's to refuse, so the division here is rounded down.
void read_batch(ObjectReader& reader, Job& job, const Plan& plan) {
  const std::int64_t model_parallel = plan.tp * plan.cp * plan.pp;
  const std::int64_t dp =
      plan.dp > 0 ? plan.dp : std::max(std::int64_t{1}, job.cluster.world_size() / model_parallel);
  const bool by_microbatches = is_given(reader, "num_microbatches");
  if (!by_microbatches && !is_given(reader, "global_batch")) {
    throw reader.error("", "found neither \"num_microbatches\" nor \"global_batch\", expected one");
  }
  const std::int64_t num_microbatches = reader.integer_or("num_microbatches", 1, 1, kMaxDegree);
  const std::int64_t from_microbatches = num_microbatches * plan.micro_batch * dp;
  job.global_batch =
      reader.integer_or("global_batch", from_microbatches, 1, kMaxDegree * kMaxDegree);
  if (by_microbatches && job.global_batch != from_microbatches) {
    throw reader.error("global_batch",
                       "found " + std::to_string(job.global_batch) + ", expected " +
                           std::to_string(from_microbatches) + ": num_microbatches " +
                           std::to_string(num_microbatches) + " x micro_batch " +
                           std::to_string(plan.micro_batch) + " x dp " + std::to_string(dp));
  }
}

// The word alone is peft's adapters as they come.
void read_trained(ObjectReader& reader, Job& job) {
  const TrainedParameters trained = choice_or(reader, "trained", trained_parameters(job));
  if (trained == trained_parameters(job)) {
    return;
  }
  if (trained == TrainedParameters::kNamed) {
    throw reader.error("trained",
                       "found \"named\" without \"name_rules\", expected them beside it");
  }
  if (trained == TrainedParameters::kAll || !job.name_rules.empty()) {
    throw reader.error("trained",
                       "found \"all\" beside \"adapters\", expected \"adapters\" or nothing");
  }
  job.adapters = kDefaultAdapters;
}

void read_training(const JsonValue& value, const std::string& file, Job& job, Plan& plan) {
  ObjectReader reader(value, file);
  job.sequence_length = reader.integer("sequence_length", 1, kMaxTokens);
  plan.micro_batch = reader.integer_or("micro_batch", plan.micro_batch, 1, kMaxDegree);
  if (job.sequence_length * plan.micro_batch > kMaxTokens) {
    throw reader.error("micro_batch", "found " + std::to_string(plan.micro_batch) +
                                          " sequences of " + std::to_string(job.sequence_length) +
                                          " tokens, expected at most " +
                                          std::to_string(kMaxTokens) + " tokens in a microbatch");
  }
  plan.precision = choice_or(reader, "precision", plan.precision);
  job.optimizer = choice_or(reader, "optimizer", job.optimizer);
  if (is_given(reader, "adapters")) {
    job.adapters = read_adapters(reader.value("adapters"), file);
  }
  if (is_given(reader, "quantization")) {
    job.quantized = read_quantization(reader.value("quantization"), file);
  }
  if (is_given(reader, "name_rules")) {
    job.name_rules = read_name_rules(reader.value("name_rules"), file);
  }
  reader.ignore("name_rules");
  reader.ignore("adapters");
  reader.ignore("quantization");
  read_trained(reader, job);
  read_batch(reader, job, plan);
  reader.finish();
}

// {"file": "path"} and nothing else; "" for any other object.
std::string file_reference(const JsonValue& value, const std::string& file) {
  if (value.kind != JsonKind::kObject) {
    return "";
  }
  ObjectReader reader(value, file);
  if (!reader.has("file")) {
    return "";
  }
  std::string path = reader.string("file");
  reader.finish();
  if (!is_path(path)) {
    path.insert(0, "./");  // not a preset
  }
  return path;
}

// validate --find-max layers has run a model that no config.json describes, and says so in its
// record (tools/report/validate.cpp).
void refuse_changed_layers(const JsonValue& value, const std::string& file) {
  const std::string_view key = "layers_changed_to";
  if (value.kind != JsonKind::kObject) {
    return;
  }
  ObjectReader reader(value, file);
  if (reader.has(key)) {
    throw reader.error(key, "found " + describe(reader.value(key)) +
                                ": this run went on in the model's pattern of layers, which its "
                                "config.json cannot say; expected the case that was asked, with "
                                "--find-max layers");
  }
}

ModelConfig read_model(const JsonValue& value, const std::string& file, const std::string& id,
                       const Library& library) {
  const std::string where = place_of(value, file);
  refuse_changed_layers(value, file);
  if (value.kind == JsonKind::kString) {
    return library.model(value.string, UnknownKeys::kWarn, where);
  }
  const std::string path = file_reference(value, file);
  return path.empty() ? read_model_config(value, id, file, UnknownKeys::kWarn)
                      : library.model(path, UnknownKeys::kWarn, where);
}

ClusterSpec read_cluster_member(const JsonValue& value, const std::string& file,
                                const Library& library) {
  const std::string where = place_of(value, file);
  if (value.kind == JsonKind::kString) {
    return library.cluster(value.string, where);
  }
  const std::string path = file_reference(value, file);
  return path.empty() ? read_cluster(value, file, library) : library.cluster(path, where);
}

std::vector<CaseOption> stated_options(const JsonValue& options, const std::string& file) {
  const ObjectReader refuses_what_is_no_object(options, file);
  std::vector<CaseOption> stated;
  for (const auto& [name, value] : options.members) {
    switch (value.kind) {
      case JsonKind::kBool: stated.push_back({name, value.boolean ? "true" : "false"}); break;
      case JsonKind::kInteger: stated.push_back({name, std::to_string(value.integer)}); break;
      case JsonKind::kReal: stated.push_back({name, exact_text(value.real)}); break;
      case JsonKind::kString: stated.push_back({name, value.string}); break;
      default: break;  // no profile has such options
    }
  }
  return stated;
}

// The profile with the line's options; without a profile the options are only looked at.
void read_framework(ObjectReader& reader, const std::string& file, const Library& library,
                    Case& result) {
  result.framework = reader.string("framework");
  result.framework_version = reader.string_or("framework_version", "");
  result.supported = library.known_framework(result.framework);
  const bool has_options = is_given(reader, "options");
  reader.ignore("options");
  if (has_options) {
    result.options = stated_options(reader.value("options"), file);
  }
  if (!result.supported) {
    return;
  }
  const std::string versioned = result.framework + "@" + result.framework_version;
  result.job.profile =
      library.framework(library.known_framework(versioned) ? versioned : result.framework);
  const std::string& version = result.job.profile.version;
  if (result.framework_version.empty()) {
    result.framework_version = version;
  } else if (result.framework_version != version) {
    result.warnings.push_back("framework_version: found \"" + result.framework_version +
                              "\", the profile describes " + version);
  }
  if (has_options) {
    apply_options(result.job.profile, reader.value("options"), file, library);
  }
}

// {"from": {"arguments": ..., "environment": ...}} instead of model, framework, training and plan.
void read_from(ObjectReader& reader, const std::string& file, const Library& library,
               Case& result) {
  RunReading run = read_run(run_settings(reader.value("from"), file), result.job.cluster, library);
  result.framework = reader.string_or("framework", run.framework);
  if (result.framework != run.framework) {
    throw reader.error("framework", "found \"" + result.framework + "\", expected \"" +
                                        run.framework + "\", as the arguments say, or nothing");
  }
  result.framework_version = reader.string_or("framework_version", run.job.profile.version);
  result.supported = run.has_profile;
  result.unsupported = run.unsupported;
  result.job = std::move(run.job);
  result.plan = std::move(run.plan);
  for (const SettingUse& use : run.uses) {
    if (use.effect == SettingEffect::kUnknown) {
      result.warnings.push_back("from: unknown setting " + shown(use.name, Encoding::kUnchecked));
    }
  }
  if (result.supported && is_given(reader, "options")) {
    apply_options(result.job.profile, reader.value("options"), file, library);
  }
  reader.ignore("options");
}

void read_measurement(ObjectReader& reader, const std::string& file, Case& result) {
  if (is_given(reader, "measured")) {
    result.measured = read_measured(reader.value("measured"), file);
  }
  reader.ignore("measured");
}

}  // namespace

Case read_case(const std::string& line, const std::string& place, const Library& library) {
  const LinePlace at = split_place(place);
  const JsonValue root = parse_json(line, at.file, at.line);
  ObjectReader reader(root, at.file);
  Case result;
  reader.integer_or("schema", 1, 1, 1);
  result.id = reader.string("id");
  reader.ignore("predicted");  // a line of results can be read again

  result.job.cluster = read_cluster_member(reader.value("cluster"), at.file, library);
  if (is_given(reader, "from")) {
    read_from(reader, at.file, library, result);
    read_measurement(reader, at.file, result);
    reader.finish();
    return result;
  }
  reader.ignore("from");
  ModelConfig model = read_model(reader.value("model"), at.file, result.id, library);
  result.job.model = std::move(model.model);
  result.warnings = std::move(model.warnings);
  read_framework(reader, at.file, library, result);
  if (std::string left_out = leave_out_modules(result.job); !left_out.empty()) {
    result.warnings.push_back(std::move(left_out));
  }

  std::vector<std::string> given;
  if (is_given(reader, "plan")) {
    read_plan(reader.value("plan"), at.file, result.plan, given);
  }
  reader.ignore("plan");
  if (result.supported) {
    result.plan = with_profile_defaults(result.job, result.plan, given);
  }
  read_training(reader.value("training"), at.file, result.job, result.plan);
  read_measurement(reader, at.file, result);
  reader.finish();
  return result;
}

std::string case_id_of(const std::string& line) {
  const std::string key = "\"id\"";
  const std::size_t found = line.find(key);
  const auto skip_space = [&](std::size_t at) {
    return std::min(line.find_first_not_of(" \t", at), line.size());
  };
  if (found == std::string::npos) {
    return "";
  }
  const std::size_t colon = skip_space(found + key.size());
  const std::size_t quote = skip_space(colon + 1);
  if (colon >= line.size() || line[colon] != ':' || quote >= line.size() || line[quote] != '"') {
    return "";
  }
  const std::size_t end = line.find_first_of("\"\\", quote + 1);
  if (end == std::string::npos || line[end] != '"') {
    return "";  // cut off, or with escapes: better no id than a wrong one
  }
  return line.substr(quote + 1, end - quote - 1);
}

}  // namespace shardplan
