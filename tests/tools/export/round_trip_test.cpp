// Exported plans, read back as any run of a user's: random valid ones of every framework that has
// files. SHARDPLAN_EXPORT_PLANS says how many of each, and SHARDPLAN_EXPORT_FOLDER where they stay
// (tools/check export).
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

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
  CHECK(prediction_text(predict(read.job, read.plan, {}), read.plan) ==
        prediction_text(prediction, question.plan));
  for (const ExportedFile& file : exported_run(request, options).files) {  // the same bytes again
    CHECK(read_file(folder + "/" + file.name) == file.text);
  }
  return true;
}

void check_framework(const std::string& framework) {
  const int wanted = std::stoi(word_from_environment("SHARDPLAN_EXPORT_PLANS", "12"));
  constexpr int kMostDrawn = 60;  // for one that can be expressed
  const Library library;
  const ExportFolder folder;
  RandomCaseLines lines(library, 47, framework);
  std::map<std::string, int> refusals;
  int exported = 0;
  int drawn = 0;
  while (exported < wanted && drawn < kMostDrawn * wanted) {
    const RandomCaseLine line = lines.next();
    CAPTURE(line.text);
    const std::string name = folder.of(framework + "-" + std::to_string(drawn++));
    if (exports(line, library, name, refusals)) {
      ++exported;
      CHECK(shell("bash -n " + name + "/launch.sh") == 0);
    }
  }
  CHECK(exported == wanted);
  std::string census = framework + ": " + std::to_string(drawn) + " drawn, " +
                       std::to_string(exported) + " exported";
  for (const auto& [reason, count] : refusals) {
    census += "\n  " + std::to_string(count) + "  " + reason;
  }
  MESSAGE(census);
}

}  // namespace

TEST_CASE("random plans of Megatron-LM come back from their launch scripts") {
  check_framework("megatron");
}

TEST_CASE("random plans of torchtitan come back from their configurations") {
  check_framework("torchtitan");
}

TEST_CASE("random plans of transformers' Trainer come back from accelerate's files") {
  check_framework("transformers");
}

TEST_CASE("random plans of DeepSpeed come back from its files") {
  check_framework("deepspeed");
}

}  // namespace shardplan
