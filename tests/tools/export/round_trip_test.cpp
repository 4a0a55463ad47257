// Exported plans, read back as any run of a user's: random valid ones of every framework that has
// files. SHARDPLAN_EXPORT_PLANS says how many of each, and SHARDPLAN_EXPORT_FOLDER where they stay
// (tools/check export).
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "estimator/answer/why_invalid.h"
#include "tests/estimator/random_case_lines.h"
#include "tests/tools/commands/answer.h"
#include "tools/export/export.h"
#include "tools/export/read_back.h"

namespace shardplan {
namespace {

namespace fs = std::filesystem;

std::string word_from_environment(const char* name, const std::string& fallback) {
  const char* const word = std::getenv(name);
  return word == nullptr ? fallback : word;
}

// A folder that goes with the test, unless the user names one.
class ExportFolder {
 public:
  std::string of(const std::string& name) const { return path_ + "/" + name; }

 private:
  TemporaryDirectory directory_;
  std::string path_ = word_from_environment("SHARDPLAN_EXPORT_FOLDER", directory_.path());
};

Question question_of_case(const Case& read) {
  Question question;
  question.job = read.job;
  question.plan = read.plan;
  return question;
}

// The model's config.json, which a case line holds or names.
ExportedModel model_of_line(const RandomCaseLine& line, const Library& library) {
  const JsonValue value = parse_json(line.text, "line");
  const JsonValue& model = at(value, "model");
  const bool is_named = model.kind == JsonKind::kString;
  return {.published = "",
          .config = is_named ? library.model_file(model.string).config.json : model};
}

Options cluster_options(const RandomCaseLine& line) {
  Options options;
  options.command = "estimate";
  options.values["cluster"] = {at(parse_json(line.text, "line"), "cluster").string};
  return options;
}

// Random lines with more of what few of them have: models with gated delta nets or trained sinks,
// adapters on whole and quantized weights, fp8. A line that would not be valid so stays as it is.
class RarerLines {
 public:
  RarerLines(const Library& library, const std::string& framework)
      : library_(library), lines_(library, 47, framework) {}

  RandomCaseLine next() {
    RandomCaseLine line = lines_.next();
    std::string text = line.text;
    if (draw(4) == 0) {
      replace_model(text);
    }
    if (draw(3) == 0) {
      add_to_training(text, adapters());
    }
    if (draw(6) == 0 && text.find("\"precision\"") == std::string::npos) {
      add_to_training(text, "\"precision\":\"fp8\"");
    }
    std::optional<Case> read = valid_case(text);
    return read ? RandomCaseLine{.text = text, .read = std::move(*read)} : std::move(line);
  }

 private:
  int draw(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

  void replace_model(std::string& text) {
    constexpr std::array kModels = {"qwen3-next-80b-a3b", "qwen3.5-0.8b", "qwen3.5-9b",
                                    "gpt-oss-20b"};
    const std::string opening = "\"model\":\"";
    const std::size_t begin = text.find(opening);
    if (begin != std::string::npos) {
      const std::size_t name = begin + opening.size();
      text.replace(name, text.find('"', name) - name,
                   kModels.at(static_cast<std::size_t>(draw(std::ssize(kModels)))));
    }
  }

  static void add_to_training(std::string& text, const std::string& members) {
    const std::string opening = "\"training\":{";
    text.insert(text.find(opening) + opening.size(), members + ",");
  }

  std::string adapters() {
    constexpr std::array kTargets = {"\"all\"", "\"all-linear\"", "[\"q_proj\",\"v_proj\"]"};
    constexpr std::array kQuantized = {"{\"kind\":\"nf4\",\"double\":true}", "{\"kind\":\"fp4\"}",
                                       "{\"kind\":\"int8\"}"};
    std::string text = "\"adapters\":{\"rank\":" + std::to_string(8 << draw(4)) +
                       ",\"targets\":" + kTargets.at(static_cast<std::size_t>(draw(3)));
    text += draw(3) == 0 ? ",\"dropout\":0.05" : "";
    text += draw(5) == 0 ? ",\"dora\":true" : "";
    text += draw(4) == 0 ? ",\"trains_head\":true" : "";
    text += draw(2) == 0 ? ",\"dtype\":\"bf16\"}" : "}";
    if (draw(2) == 0) {
      text += std::string(",\"quantization\":") + kQuantized.at(static_cast<std::size_t>(draw(3)));
    }
    return text;
  }

  std::optional<Case> valid_case(const std::string& text) const {
    try {
      Case read = read_case(text, "export:1", library_);
      const bool is_valid = read.supported && first_broken_rule(read.job, read.plan) == nullptr;
      return is_valid ? std::optional(std::move(read)) : std::nullopt;
    } catch (const InputError&) {  // what does not go together
      return std::nullopt;
    }
  }

  const Library& library_;
  RandomCaseLines lines_;
  std::mt19937_64 random_{74};
};

// What of an exported plan is rare enough to be counted.
std::vector<std::string> features_of(const Job& job, const Plan& plan) {
  std::vector<std::string> features;
  const auto add = [&](bool has, const char* name) {
    if (has) {
      features.emplace_back(name);
    }
  };
  const std::vector<LayerSpec>& layers = job.model.layers;
  add(std::ranges::any_of(
          layers, [](const LayerSpec& layer) { return layer.mixer == MixerKind::kGatedDelta; }),
      "delta nets");
  add(std::ranges::any_of(layers, &LayerSpec::has_sinks), "sinks");
  add(plan.ep > 1, "ep");
  add(job.model.moe.num_experts > 0 && plan.etp != plan.tp, "etp");
  add(plan.precision == Precision::kFp8, "fp8");
  add(job.optimizer != OptimizerKind::kAdamW, "optimizers");
  add(job.adapters.rank > 0, "adapters");
  add(job.quantized.kind != Quantization::kNone, "quantized");
  add(plan.cp > 1, "cp");
  add(plan.offload.optimizer > 0 || plan.offload.parameters, "offload");
  return features;
}

// One sentence without its numbers and values: reasons of refusals fall into few kinds.
std::string kind_of(const std::string& message) {
  return message.substr(0, std::min<std::size_t>(message.size(), 150));
}

// Whether the framework can express the plan; if so, the files say it.
bool exports(const RandomCaseLine& line, const Library& library, const std::string& folder,
             std::map<std::string, int>& refusals) {
  const Question question = question_of_case(line.read);
  const Prediction prediction = predict(question.job, question.plan, {});
  REQUIRE(prediction.has_numbers());
  const ExportedModel model = model_of_line(line, library);
  const ExportRequest request = {.question = question,
                                 .prediction = prediction,
                                 .model = model,
                                 .library = library,
                                 .command = "shardplan estimate"};
  const Options options = cluster_options(line);
  ExportedRun run;
  try {
    run = write_run(request, options, folder);
  } catch (const InputError& refusal) {
    CHECK_MESSAGE(std::string(refusal.what()).starts_with("--export: "), refusal.what());
    CHECK_FALSE(fs::exists(folder));
    ++refusals[kind_of(refusal.what())];
    return false;
  }
  const std::string launch = folder + "/" + run.launch;
  const Question read = question_of_files(options, library, launch, run.facts);
  CHECK(read.run.value().reading.unsupported == "");
  for (const SettingUse& use : read.run.value().reading.uses) {
    CHECK_MESSAGE(use.effect != SettingEffect::kUnknown, use.name);
  }
  CHECK(prediction_text(predict(read.job, read.plan, {})) == prediction_text(prediction));
  for (const ExportedFile& file : exported_run(request, options).files) {  // the same bytes again
    CHECK(read_file(folder + "/" + file.name) == file.text);
  }
  return true;
}

// `features`: that 200 exported plans must have.
void check_framework(const std::string& framework, const std::vector<std::string>& features) {
  const int wanted = std::stoi(word_from_environment("SHARDPLAN_EXPORT_PLANS", "12"));
  constexpr int kMostDrawn = 60;  // for one that can be expressed
  const Library library;
  const ExportFolder folder;
  RarerLines lines(library, framework);
  std::map<std::string, int> refusals;
  std::map<std::string, int> exported_with;
  int exported = 0;
  int drawn = 0;
  while (exported < wanted && drawn < kMostDrawn * wanted) {
    const RandomCaseLine line = lines.next();
    CAPTURE(line.text);
    const std::string name = folder.of(framework + "-" + std::to_string(drawn++));
    if (exports(line, library, name, refusals)) {
      ++exported;
      for (const std::string& feature : features_of(line.read.job, line.read.plan)) {
        ++exported_with[feature];
      }
      CHECK(shell("bash -n " + name + "/launch.sh") == 0);
    }
  }
  CHECK(exported == wanted);
  std::string census = framework + ": " + std::to_string(drawn) + " drawn, " +
                       std::to_string(exported) + " exported";
  for (const auto& [feature, count] : exported_with) {
    census += ", " + feature + " " + std::to_string(count);
  }
  for (const std::string& feature : features) {
    CHECK_MESSAGE((wanted < 200 || exported_with.contains(feature)), feature);
  }
  for (const auto& [reason, count] : refusals) {
    census += "\n  " + std::to_string(count) + "  " + reason;
  }
  MESSAGE(census);
}

}  // namespace

TEST_CASE("random plans of Megatron-LM come back from their launch scripts") {
  check_framework("megatron",
                  {"delta nets", "sinks", "ep", "etp", "fp8", "optimizers", "cp", "offload"});
}

TEST_CASE("random plans of torchtitan come back from their configurations") {
  check_framework("torchtitan", {"ep", "cp"});
}

TEST_CASE("random plans of transformers' Trainer come back from accelerate's files") {
  check_framework("transformers", {"optimizers", "adapters", "quantized", "offload"});
}

TEST_CASE("random plans of DeepSpeed come back from its files") {
  check_framework("deepspeed", {"adapters", "offload"});
}

}  // namespace shardplan
